"""Summaries of a matrix of weights, forward and backward, with few passes over memory.

Written with plain operations the entropy alone, forward and backward, costs as much as a whole
attention layer: every intermediate is one more matrix to fill. Here a few matrices at a time go
through all steps while they are in a core's cache, and the logarithm is made twice, not held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from regard.normalise import product
from regard.types import Weights, pieces

_LEAST = 1e-30  # a weight below this adds nothing to an entropy
_PIECE = 1 << 18  # weights that stay in a core's cache together with their logarithms


def plainly(
    weights: Weights, names: Sequence[str], allowed: Tensor | None, rows: Tensor | None
) -> dict[str, Tensor]:
    """Summaries by name, each (batch, head, position), with operations a compiler can fuse.

    Args:
        weights: (batch, head, query, key).
        names: of "received", "entropy", "strongest", "self_weight".
        allowed: pairs that count; all when None.
        rows: queries that count for what a key receives, (batch or 1, query); all when None.
    """
    if allowed is not None:
        weights = torch.where(allowed, weights, weights.new_zeros(()))
    some = weights.shape[-1] > 0
    found = {}
    for name in names:
        if name == "received":
            real = weights if rows is None else weights * rows[:, None, :, None]
            found[name] = real.sum(2).log1p()
        elif name == "entropy":
            found[name] = -(weights * weights.clamp_min(_LEAST).log()).sum(-1)
        elif name == "strongest":
            found[name] = weights.amax(-1) if some else weights.sum(-1)
        else:
            found[name] = weights.diagonal(dim1=2, dim2=3)
    return found


def at_once(
    weights: Weights, names: Sequence[str], allowed: Tensor | None, rows: Tensor | None
) -> dict[str, Tensor]:
    """`plainly`, in one go over the matrix and one back."""
    if 0 in weights.shape:
        return plainly(weights, names, allowed, rows)
    if allowed is not None:
        allowed = allowed.to(weights.dtype)  # once, for all heads
    if rows is not None:
        rows = rows.to(weights.dtype).expand(weights.shape[0], -1)
    answers = _AtOnce.apply(weights, tuple(names), allowed, rows)  # type: ignore[no-untyped-call]
    found = dict(zip(names, answers))
    if "received" in found:
        found["received"] = found["received"].log1p()
    return found


class _AtOnce(torch.autograd.Function):
    """Received is the plain column mass here; `allowed` is 1.0 and 0.0."""

    @staticmethod
    def forward(
        weights: Tensor,
        names: tuple[str, ...],
        allowed: Tensor | None,
        rows: Tensor | None,
    ) -> tuple[Tensor, ...]:
        sizes = dict.fromkeys(names, weights.shape[2])
        if "received" in sizes:
            sizes["received"] = weights.shape[3]
        found = {name: weights.new_empty(*weights.shape[:2], size) for name, size in sizes.items()}
        for example, heads in _matrices(weights):
            part = _heeded(weights, allowed, example, heads)
            real = None if rows is None else rows[example]
            for name, answer in found.items():
                answer[example, heads] = _FORWARD[name](part, real)
        return tuple(found.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        weights, ctx.names, allowed, rows = inputs
        ctx.save_for_backward(weights, allowed, rows)

    @staticmethod
    def backward(ctx: Any, *by_answer: Tensor) -> tuple[Tensor, None, None, None]:
        weights, allowed, rows = ctx.saved_tensors
        given = dict(zip(ctx.names, by_answer))
        if torch.is_grad_enabled():  # somebody wants gradients of this
            return _back_plainly(weights, given, allowed, rows), None, None, None
        gradient = torch.empty_like(weights, memory_format=torch.contiguous_format)
        for example, heads in _matrices(weights):
            here = {name: by[example, heads] for name, by in given.items()}
            part = _heeded(weights, allowed, example, heads)
            real = None if rows is None else rows[example]
            _back(part, gradient[example, heads], here, real)
            if allowed is not None:
                gradient[example, heads] *= _part(allowed, example, heads)
        return gradient, None, None, None


def extreme(weights: Weights, which: Literal["max", "min"]) -> Tensor:
    """(batch, 1, query, key), the largest or least weight of all heads; ties share the gradient."""
    if torch.compiler.is_compiling() or 0 in weights.shape:
        return weights.amax(1, keepdim=True) if which == "max" else weights.amin(1, keepdim=True)
    found: Tensor = _Extreme.apply(weights, which)  # type: ignore[no-untyped-call]
    return found


class _Extreme(torch.autograd.Function):
    """One head after another on the way there, some rows of all heads at a time on the way back."""

    @staticmethod
    def forward(weights: Tensor, which: str) -> Tensor:
        further = torch.maximum if which == "max" else torch.minimum
        joined = weights[:, :1].clone(memory_format=torch.contiguous_format)
        for head in range(1, weights.shape[1]):
            further(joined, weights[:, head : head + 1], out=joined)
        return joined

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, by_joined: Tensor) -> tuple[Tensor, None]:
        weights, joined = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants gradients of this
            ties = (weights == joined).to(weights.dtype)
            return ties * (by_joined / ties.sum(1, keepdim=True)), None
        gradient = torch.empty_like(weights, memory_format=torch.contiguous_format)
        batch, heads, queries, keys = weights.shape
        for example in range(batch):
            for rows in pieces(queries, max(1, _PIECE // (heads * keys))):
                here = (slice(example, example + 1), slice(None), rows)
                same = _equal(weights[here], joined[here])
                share = by_joined[here] / same.sum(1, keepdim=True)
                torch.mul(same, share, out=gradient[here])
        return gradient, None


def _matrices(weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Some matrices at a time: heads of one example, or whole examples where they are small."""
    batch, heads, queries, keys = weights.shape
    if weights.device.type != "cpu":
        yield slice(None), slice(None)
        return
    at_once = max(1, _PIECE // (queries * keys))
    if at_once >= heads:
        for examples in pieces(batch, at_once // heads):
            yield examples, slice(None)
        return
    for example in range(batch):
        for some in pieces(heads, at_once):
            yield slice(example, example + 1), some


def _heeded(weights: Tensor, allowed: Tensor | None, example: slice, heads: slice) -> Tensor:
    part = weights[example, heads]
    if allowed is None:
        return part
    counts = _part(allowed, example, heads)
    if part.device.type == "cpu":
        kept = part * counts  # four times as fast as `where`
        if kept.sum().isfinite():
            return kept
    return torch.where(counts != 0, part, part.new_zeros(()))


def _part(allowed: Tensor, example: slice, heads: slice) -> Tensor:
    """The pairs that count of some matrices; a size of 1 serves all examples or heads."""
    return allowed[
        example if allowed.shape[0] > 1 else slice(None),
        heads if allowed.shape[1] > 1 else slice(None),
    ]


def _received(part: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None:
        return part.sum(-2)
    return product(rows[:, None, None].expand(-1, part.shape[1], -1, -1), part)[..., 0, :]


def _entropy(part: Tensor, rows: Tensor | None) -> Tensor:
    return part.clamp_min(_LEAST).log_().mul_(part).sum(-1).neg_()


_FORWARD: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "received": _received,
    "entropy": _entropy,
    "strongest": lambda part, rows: part.amax(-1),
    "self_weight": lambda part, rows: part.diagonal(dim1=-2, dim2=-1),
}


def _back(part: Tensor, gradient: Tensor, by: dict[str, Tensor], rows: Tensor | None) -> None:
    """Write the gradient by some matrices: −(log A + 1) of the entropy, and what the others add.

    Below the least weight that counts, where the logarithm stands still, it is −log A.
    """
    if "entropy" in by:
        torch.clamp_min(part, _LEAST, out=gradient)
        counts = torch.ge(part, _LEAST, out=torch.empty_like(part))
        gradient.log_().add_(counts).mul_(by["entropy"].neg()[..., None])
    else:
        gradient.zero_()
    if "received" in by:
        columns = by["received"][..., None, :]
        if rows is None:
            gradient.add_(columns)
        else:
            gradient.addcmul_(rows[:, None, :, None], columns)
    if "strongest" in by:
        same = _equal(part, part.amax(-1, keepdim=True))  # ties share
        gradient.addcmul_(same, (by["strongest"] / same.sum(-1))[..., None])
    if "self_weight" in by:
        gradient.diagonal(dim1=-2, dim2=-1).add_(by["self_weight"])


def _back_plainly(
    weights: Tensor, by: dict[str, Tensor], allowed: Tensor | None, rows: Tensor | None
) -> Tensor:
    """`_back` of all matrices, with operations that can be gone back through once more."""
    part = weights
    if allowed is not None:
        part = torch.where(allowed != 0, weights, weights.new_zeros(()))
    gradient = torch.zeros_like(part)
    if "entropy" in by:
        slope = part.clamp_min(_LEAST).log() + (part >= _LEAST)
        gradient = gradient - by["entropy"][..., None] * slope
    if "received" in by:
        columns = by["received"][..., None, :]
        gradient = gradient + (columns if rows is None else rows[:, None, :, None] * columns)
    if "strongest" in by:
        ties = (part == part.amax(-1, keepdim=True)).to(part.dtype)
        gradient = gradient + ties * (by["strongest"] / ties.sum(-1))[..., None]
    if "self_weight" in by:
        gradient = gradient + torch.diag_embed(by["self_weight"])
    return gradient if allowed is None else gradient * allowed


def _equal(part: Tensor, other: Tensor) -> Tensor:
    """1.0 where equal, else 0.0; six times as fast as to compare and then convert."""
    return torch.eq(part, other, out=torch.empty_like(part))
