"""Summaries of each position's weights, differentiable.

| name          | of the | meaning                                                                |
|---------------|--------|------------------------------------------------------------------------|
| `received`    | key    | log(1 + Σᵢ Aᵢⱼ): the attention it receives; the logarithm tames sinks   |
| `entropy`     | query  | −Σⱼ Aᵢⱼ log Aᵢⱼ: how spread out its row is, in nats                     |
| `strongest`   | query  | maxⱼ Aᵢⱼ: the largest weight of its row                                 |
| `self_weight` | self   | Aᵢᵢ: its weight on itself, where queries and keys are one sequence      |

The mean and the sum of a row are not among them: rows sum to 1, so the mean over S keys is 1/S
whatever the model attends to, and a layer learns nothing from a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from regard import masks
from regard.checks import check_sizes
from regard.errors import RegardError, UnavailableError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import Entropy, ReceivedAttention, TopK
from regard.kernel.reducers.base import Reducer
from regard.reuse.heads import HeadJoin, Joining
from regard.reuse.source import SIDES, Side, Source
from regard.types import Weights, pieces

#: The summaries on offer, and whose positions each is about.
SUMMARIES: dict[str, Side] = {
    "received": "key",
    "entropy": "query",
    "strongest": "query",
    "self_weight": "self",
}
_REDUCERS: dict[str, Callable[[], Reducer]] = {
    "received": ReceivedAttention,
    "entropy": Entropy,
    "strongest": partial(TopK, 1),
}
_UNDEFINED = {"entropy": ("signed", "gate"), "received": ("signed",)}  # for kinds of weights
_CONSTANT = ("mean", "sum", "average", "avg", "total", "given")
_LEAST = 1e-30  # a weight below this adds nothing to an entropy
_PIECE = 1 << 18  # weights that fit in a core's cache together with their logarithms


class PositionSummaries(nn.Module):
    """Summaries of the weights as channels of each position, (batch, position, channels).

    `received` sums over later rows too, so it is refused where masks make the weights causal.

    Args:
        n_heads: number of heads of the weights.
        side: whose positions: "query", "key", or "self" where they are the same.
        summaries: names from the table above; all that the side has when None.
        heads: "concat" keeps a channel a head; "mean", "max", a number, a weighting or
            `LearnedHeadMix(n_heads)` join the maps first.
    """

    sides = SIDES
    owner = "PositionSummaries"  # whose name errors have

    def __init__(
        self,
        n_heads: int,
        *,
        side: Side = "self",
        summaries: Sequence[str] | None = None,
        heads: Joining = "concat",
    ) -> None:
        super().__init__()
        check_sizes("PositionSummaries", n_heads=n_heads)
        self.n_heads, self.side = n_heads, checked_side("PositionSummaries", side)
        self.summaries = checked_summaries(summaries, side)
        self.join = HeadJoin("PositionSummaries", heads, n_heads)
        self.channels = len(self.summaries) * self.join.maps

    def forward(self, source: Source) -> Tensor:
        """(batch, position, summary · head), each summary's heads side by side."""
        source.check_heads(self.owner, self.n_heads)
        if self.side == "self":
            source.check_same_positions(self.owner)
        if "received" in self.summaries and source.causal:
            self._refuse_the_future(source)
        for name, kinds in _UNDEFINED.items():
            if name in self.summaries and source.kind in kinds:
                raise UnavailableError(
                    f"{self.owner}: {source.name} are {source.kind} weights, for which "
                    f"{name!r} has no meaning"
                )
        summaries = self._streamed(source) or self._dense(source)
        if "received" in summaries:
            summaries["received"] = summaries["received"].log1p()
        channels = torch.cat([summaries[name] for name in self.summaries], dim=1)
        return channels.transpose(1, 2)  # (batch, position, channel)

    def _refuse_the_future(self, source: Source) -> None:
        others = [name for name in self.summaries if name != "received"]
        fix = f"summaries={others}" if others else "side='query'"
        raise UnavailableError(
            f"{self.owner}: {source.name} are causal, and 'received' sums over later queries too: "
            f"a position would know what comes after it. Take {fix}; where sequences are always "
            "whole, pass the weights as a tensor, which has no mask"
        )

    def _dense(self, source: Source) -> dict[str, Tensor]:
        rows = source.real_rows(self.side)
        if self.join.is_identity and not torch.compiler.is_compiling():
            return summarise(source.unmasked(), self.summaries, source.allowed(self.side), rows)
        return summarise(self.join(source.weights(self.side)), self.summaries, None, rows)

    def _streamed(self, source: Source) -> dict[str, Tensor] | None:
        """The same from the recipe, tile by tile, where no matrix and no gradient is needed."""
        separate = self.join.is_identity and "self_weight" not in self.summaries
        if not separate or 0 in source.shape or not source.streams:
            return None
        recipe: Any = source.recipe
        real = source.real_rows(self.side)
        if real is not None:
            if not hasattr(recipe, "mask"):
                return None
            rows = real.expand(source.shape.batch, -1).long()
            real_queries = masks.segments(rows, torch.ones_like(rows))
            recipe = replace(recipe, mask=masks.both(recipe.mask, real_queries))
        answers = reduce(recipe, [_REDUCERS[name]() for name in self.summaries])
        summaries = dict(zip(self.summaries, answers))
        if "strongest" in summaries:
            summaries["strongest"] = summaries["strongest"].weights[..., 0]
        return summaries

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"{', '.join(self.summaries)} of the {self.side} side, {self.channels} channels"


def summarise(
    weights: Weights, names: Sequence[str], allowed: Tensor | None, rows: Tensor | None
) -> dict[str, Tensor]:
    """Summaries by name, each (batch, head, position); `received` without its logarithm.

    Args:
        weights: (batch, head, query, key).
        names: of `SUMMARIES`.
        allowed: pairs that count; all when None.
        rows: queries that count in `received`, (batch or 1, query); all when None.
    """
    if torch.compiler.is_compiling() or 0 in weights.shape:
        return summarise_plainly(weights, names, allowed, rows)
    if rows is not None:
        rows = rows.expand(weights.shape[0], -1)
    answers = _InPieces.apply(weights, tuple(names), allowed, rows)  # type: ignore[no-untyped-call]
    return dict(zip(names, answers))


def summarise_plainly(
    weights: Weights, names: Sequence[str], allowed: Tensor | None, rows: Tensor | None
) -> dict[str, Tensor]:
    """`summarise`, with operations that autograd differentiates and a compiler fuses."""
    if allowed is not None:
        weights = torch.where(allowed, weights, weights.new_zeros(()))
    summaries = {}
    for name in names:
        if name == "received":
            real = weights if rows is None else weights * rows[:, None, :, None]
            summaries[name] = real.sum(2)
        elif name == "entropy":
            summaries[name] = -(weights * weights.clamp_min(_LEAST).log()).sum(-1)
        elif name == "strongest":
            summaries[name] = weights.amax(-1) if weights.shape[-1] else weights.sum(-1)
        else:
            summaries[name] = weights.diagonal(dim1=2, dim2=3)
    return summaries


class _InPieces(torch.autograd.Function):
    """`summarise_plainly`, a few matrices at a time while they are in cache, backward too.

    Autograd's own backward keeps and fills a whole matrix for every intermediate. In
    `benchmarks/reuse.py --quick`, forward and backward of the gate with four summaries are 1.9
    times as fast as with plain operations, and the summaries of a concatenation 2.7 times.
    """

    @staticmethod
    def forward(
        weights: Tensor, names: tuple[str, ...], allowed: Tensor | None, rows: Tensor | None
    ) -> tuple[Tensor, ...]:
        batch, heads, queries, keys = weights.shape
        sizes = {name: keys if name == "received" else queries for name in names}
        summaries = {name: weights.new_empty(batch, heads, n) for name, n in sizes.items()}
        for index, matrices, pairs, real in _pieces(weights, allowed, rows):
            for name, values in summarise_plainly(matrices, names, pairs, real).items():
                summaries[name][index] = values
        return tuple(summaries.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        weights, ctx.names, allowed, rows = inputs
        ctx.save_for_backward(weights, allowed, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        weights, allowed, rows = ctx.saved_tensors
        if torch.is_grad_enabled():  # for gradients of gradients
            summaries = summarise_plainly(weights, ctx.names, allowed, rows)
            outputs = tuple(summaries[name] for name in ctx.names)
            (gradient,) = torch.autograd.grad(outputs, weights, gradients, create_graph=True)
            return gradient, None, None, None
        gradient = torch.zeros_like(weights, memory_format=torch.contiguous_format)
        for index, matrices, pairs, real in _pieces(weights, allowed, rows):
            by_name = {name: values[index] for name, values in zip(ctx.names, gradients)}
            _add_gradient(gradient[index], matrices, pairs, real, by_name)
        return gradient, None, None, None


def _pieces(
    weights: Tensor, allowed: Tensor | None, rows: Tensor | None
) -> Iterator[tuple[tuple[slice, slice], Tensor, Tensor | None, Tensor | None]]:
    """Some matrices at a time, by examples and heads, with the pairs and rows that count."""
    batch, heads, queries, keys = weights.shape
    count = max(1, _PIECE // (queries * keys)) if weights.device.type == "cpu" else batch * heads
    for examples in pieces(batch, max(1, count // heads)):
        for some_heads in pieces(heads, min(count, heads)):
            pairs = allowed
            if pairs is not None:
                pairs = pairs[examples] if pairs.shape[0] > 1 else pairs
                pairs = pairs[:, some_heads] if pairs.shape[1] > 1 else pairs
            index = examples, some_heads
            yield index, weights[index], pairs, None if rows is None else rows[examples]


def _add_gradient(
    gradient: Tensor,
    weights: Tensor,
    allowed: Tensor | None,
    rows: Tensor | None,
    by_name: dict[str, Tensor],
) -> None:
    """Add the gradient with respect to some matrices, from those of their summaries, in place.

    Comparisons write floats (`out=`), six times as fast as converting booleans.
    """
    if allowed is not None:
        weights = torch.where(allowed, weights, weights.new_zeros(()))
    if "entropy" in by_name:  # −(log A + 1); below the least weight, a constant, −log A
        counted = torch.ge(weights, _LEAST, out=torch.empty_like(weights))
        torch.clamp_min(weights, _LEAST, out=gradient)
        gradient.log_().add_(counted).mul_(by_name["entropy"].neg()[..., None])
    if "received" in by_name:
        columns = by_name["received"][..., None, :]
        real = weights.new_ones(()) if rows is None else rows[:, None, :, None].to(weights.dtype)
        gradient.addcmul_(real, columns)
    if "strongest" in by_name:
        ties = torch.eq(weights, weights.amax(-1, keepdim=True), out=torch.empty_like(weights))
        gradient.addcmul_(ties, (by_name["strongest"] / ties.sum(-1))[..., None])
    if "self_weight" in by_name:
        gradient.diagonal(dim1=-2, dim2=-1).add_(by_name["self_weight"])
    if allowed is not None:
        gradient.mul_(allowed)


def checked_side(owner: str, side: Any) -> Side:
    """The side; raises where it is none."""
    if side not in SIDES:
        raise RegardError(f"{owner}: side={side!r}, expected 'query', 'key' or 'self'")
    checked: Side = side
    return checked


def checked_summaries(names: Sequence[str] | None, side: Side) -> tuple[str, ...]:
    """The names of summaries; raises where a side does not have one."""
    offered = [name for name, of in SUMMARIES.items() if side in ("self", of)]
    if names is None:
        return tuple(offered)
    if isinstance(names, str):
        raise RegardError(f"summaries={names!r}, expected a list of names, as [{names!r}]")
    for name in names:
        if name not in SUMMARIES and any(word in str(name).lower() for word in _CONSTANT):
            raise RegardError(
                f"summaries: {name!r} is constant by construction: every row of weights sums to 1, "
                "so its mean over S keys is 1/S whatever is attended to, and a layer learns "
                f"nothing from it. Offered: {', '.join(SUMMARIES)}"
            )
        if name not in SUMMARIES:
            raise RegardError(f"summaries: {name!r}, expected some of {', '.join(SUMMARIES)}")
        if name == "self_weight" and side != "self":
            raise RegardError(
                "summaries: 'self_weight' needs queries and keys that are the same positions; "
                f"with side={side!r}, as for cross-attention, a position has no weight on itself"
            )
        if name not in offered:
            raise RegardError(
                f"summaries: {name!r} is of the {SUMMARIES[name]} side, but side={side!r}; offered "
                f"there: {', '.join(offered)}"
            )
    if not names or len(set(names)) < len(names):
        raise RegardError(f"summaries={list(names)}, expected at least one name, each once")
    return tuple(names)
