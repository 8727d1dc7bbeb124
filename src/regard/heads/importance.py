"""How much each head matters to a loss: by the gradient of a mask, by leaving out, by gates.

Every head's output is multiplied by a number ξ, which is 1. The gradient method asks how fast the
loss changes with it, E|∂L/∂ξ|, the absolute value taken for each example before the mean (Michel,
Levy and Neubig 2019, "Are sixteen heads really better than one?", equation 2). By the chain rule
∂L/∂ξ = ⟨head, ∂L/∂head⟩. Leaving out asks for the loss at ξ = 0 minus the loss at 1. Gates learn ξ:
see `regard.heads.learn_gates`.

>>> import torch, regard
>>> from torch import nn
>>> torch.manual_seed(0)  # doctest: +ELLIPSIS
<torch._C.Generator object at ...>
>>> model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
>>> model.self_attn.out_proj.weight.data[:, 4:] = 0  # head 1 has no effect
>>> data = [torch.randn(3, 5, 8)]
>>> importance = regard.head_importance(model, data, lambda output, inputs: output[:, 0, 0])
>>> importance.scores[0, 0] > 0, importance.scores[0, 1] == 0
(tensor(True), tensor(True))
>>> importance.least(1)
{'self_attn': [1]}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.anatomy.head_sites import HeadSite, Sites, head_sites
from regard.errors import RegardError, ShapeError
from regard.heads.head_mask import Leaf, Row, head_leaves, rows_of, scaled_heads
from regard.heads.passes import (
    Loss,
    Run,
    batches_of,
    losses_of,
    run_on,
    same_random_numbers,
    undisturbed,
)
from regard.progress import progress

Method = Literal["gradient", "leave_out", "gates"]
Calls = Literal["each", "shared"]
LossesOn = Callable[[Any], Tensor]
#: Of each batch, every row's scores summed over examples, (head,), and the number of examples.
BatchSums = Iterator[tuple[list[Tensor], int]]
_SHOWN = 16  # heads of a row that are printed


@dataclass(frozen=True, eq=False, repr=False)
class HeadImportance:
    """A score for every head of every attention, in the order in which they ran."""

    names: tuple[str, ...]  #: paths as in a trace; of several calls the second is "path#2"
    scores: Tensor  #: (layer, head); NaN where a layer has fewer heads than another
    method: str

    def __getitem__(self, layer: str | int) -> Tensor:
        """Scores (head,) of one attention, by name or number."""
        if isinstance(layer, str):
            if layer not in self.names:
                raise RegardError(f"no attention is named {layer!r}; there are {list(self.names)}")
            layer = self.names.index(layer)
        row = self.scores[layer]
        return row[~row.isnan()] if bool(row.isnan().any()) else row

    def weights(self) -> Tensor:
        """Importance as a weighting (layer, head) of each layer's heads: rows sum to 1.

        Scores below 0 (harmful heads) count as 0; a layer without positive scores is uniform.
        """
        there = ~self.scores.isnan()
        shares = torch.where(there, self.scores, 0.0).clamp_min(0.0)
        shares = torch.where(shares.sum(1, keepdim=True) > 0, shares, there.to(shares.dtype))
        return shares / shares.sum(1, keepdim=True)

    def normalised(self) -> HeadImportance:
        """Each layer's scores divided by their length, √Σ score², as Michel et al. compare them."""
        length = self.scores.nan_to_num().norm(dim=1, keepdim=True)
        scores = self.scores / torch.where(length > 0, length, 1.0)
        return HeadImportance(self.names, scores, self.method)

    def least(self, count: int) -> dict[str, list[int]]:
        """The heads with the lowest scores, as `regard.prune` takes them."""
        return self._first(count, descending=False)

    def most(self, count: int) -> dict[str, list[int]]:
        """The heads with the highest scores."""
        return self._first(count, descending=True)

    def _first(self, count: int, descending: bool) -> dict[str, list[int]]:
        there = (~self.scores.isnan()).nonzero().tolist()
        if not 0 <= count <= len(there):
            raise RegardError(f"count={count}, expected from 0 to {len(there)} heads")
        sign = -1.0 if descending else 1.0
        there.sort(key=lambda entry: sign * float(self.scores[entry[0], entry[1]]))
        chosen: dict[str, list[int]] = {}
        for layer, head in sorted(there[:count]):
            chosen.setdefault(self.names[layer], []).append(head)
        return chosen

    def __repr__(self) -> str:
        layers, wide = self.scores.shape
        shown = min(wide, _SHOWN)
        width = max(len("attention"), *(len(name) for name in self.names))
        largest = float(self.scores.nan_to_num().abs().max())
        exponent = 3 * math.floor(math.log10(largest) / 3) if largest > 0 else 0
        unit = f", times 1e{exponent}" if exponent else ""
        head = "attention".ljust(width) + "".join(f"{h:>8}" for h in range(shown))
        more = f"  … {wide - shown} more" if wide > shown else ""
        lines = [f"Head importance by {self.method}{unit}: {layers} × {wide}", head + more]
        for name, row in zip(self.names, (self.scores[:, :shown] / 10.0**exponent).tolist()):
            cells = ("" if score != score else f"{score:8.2f}" for score in row)
            lines.append(name.ljust(width) + "".join(cells))
        return "\n".join(lines)


def head_importance(
    model: nn.Module,
    data: Iterable[Any],
    loss: Loss,
    method: Method = "gradient",
    *,
    calls: Calls = "each",
    sites: Sites = None,
    run: Run | None = None,
    show_progress: bool = True,
) -> HeadImportance:
    """How much each head matters to a loss, over some data.

    The model runs in eval mode. No side effects: modes, gradients, parameters, hooks and random
    state are restored.

    Args:
        model: any module with attention that `head_sites` finds.
        data: batches: a dictionary is named arguments, a tuple several, a tensor one.
        loss: of what the model returned and the batch it came from; one loss for each example,
            (batch,). One number is enough for batches of one example; "leave_out" and "gates" take
            it for larger ones too, where it counts once.
        method: "gradient" is a forward and a backward pass a batch; "leave_out" a forward pass
            for every head; "gates" are those of `learn_gates` with its defaults.
        calls: a module that runs several times in one pass, as in ALBERT, has a row for "each"
            call, named as in a trace, or one "shared" row.
        sites: where the heads are, when the structure does not tell: see `head_sites`.
        run: how the model is run on a batch, as `lambda model, batch: model(batch["x"])`.
        show_progress: whether a bar shows the progress, in a terminal.
    """
    if method not in ("gradient", "leave_out", "gates"):
        raise RegardError(f"method={method!r}, expected 'gradient', 'leave_out' or 'gates'")
    if method == "gates":
        from regard.heads.gates import learn_gates

        learned = learn_gates(
            model, data, loss, calls=calls, sites=sites, run=run, show_progress=show_progress
        )
        return learned.importance
    run = run or run_on
    total = _length(data)
    leave_out = method == "leave_out"
    chosen = head_sites(model, sites)
    with undisturbed(model):
        rows, batches = survey(model, data, calls, chosen, run, masked=leave_out)
        if total and leave_out:
            total *= sum(row.site.n_heads for row in rows)

        def losses_on(inputs: Any) -> Tensor:
            with same_random_numbers(model) if leave_out else nullcontext():
                return losses_of(loss, run(model, inputs), inputs)

        totals = [torch.zeros(row.site.n_heads, dtype=torch.float64) for row in rows]
        examples = 0
        measure = _by_leaving_out if leave_out else _by_gradient
        with progress("head importance", total, None if show_progress else False) as step:
            for sums, count in measure(batches, rows, losses_on, step):
                totals = [total + batch_sum for total, batch_sum in zip(totals, sums)]
                examples += count
    return score_table(rows, [total / max(examples, 1) for total in totals], method)


def survey(
    model: nn.Module,
    data: Iterable[Any],
    calls: Calls,
    sites: Sequence[HeadSite],
    run: Run,
    *,
    masked: bool,
) -> tuple[list[Row], Iterator[Any]]:
    """The rows that the first batch shows, and the batches, that one included."""
    if calls not in ("each", "shared"):
        raise RegardError(f"calls={calls!r}, expected 'each' or 'shared'")
    batches = batches_of(data)
    try:
        first = next(batches)
    except StopIteration:
        raise RegardError("data is empty: there is nothing to measure on") from None
    with same_random_numbers(model):
        rows = rows_of(sites, lambda: run(model, first))
    if calls == "shared":
        rows = list(dict.fromkeys(Row(row.site) for row in rows))
    for row in rows:
        if masked and row.call is not None and row.site.in_torch:
            raise RegardError(
                f"{row.site.name} runs several times in one pass, and nn.MultiheadAttention has "
                "one mask for all of them: take calls='shared'"
            )
    return rows, chain([first], batches)


def score_table(rows: Sequence[Row], scores: Sequence[Tensor], method: str) -> HeadImportance:
    """Scores (head,) of each row as one table."""
    widest = max(row.site.n_heads for row in rows)
    table = torch.full((len(rows), widest), float("nan"), dtype=torch.float64)
    for row_scores, score in zip(table, scores):
        row_scores[: len(score)] = score
    return HeadImportance(tuple(row.name for row in rows), table, method)


def _by_gradient(
    batches: Iterable[Any], rows: Sequence[Row], losses_on: LossesOn, step: Callable[[], None]
) -> BatchSums:
    slopes_of = _ExampleSlopes(rows)
    for inputs in batches:
        with torch.enable_grad():
            with head_leaves(dict.fromkeys(row.site for row in rows)) as leaves:
                losses = losses_on(inputs)
            if losses.dim() == 0:
                _check_lone_example(inputs)
                losses = losses[None]
            if not losses.requires_grad:
                raise RegardError(
                    "the loss has no gradient by the heads: it was detached, or does not depend on "
                    "the attention"
                )
            sums = [slopes.abs().sum(0) for slopes in slopes_of(losses, leaves)]
        step()
        yield sums, len(losses)


def _check_lone_example(inputs: Any) -> None:
    """One number is the loss of one example: refuse it for more."""
    arguments = inputs.values() if isinstance(inputs, Mapping) else inputs
    arguments = [inputs] if isinstance(inputs, Tensor) else arguments
    sizes = {len(tensor) for tensor in arguments if isinstance(tensor, Tensor) and tensor.dim()}
    if sizes - {1}:
        raise ShapeError(
            f"loss gave one number for inputs of {max(sizes)} rows; the absolute value is taken "
            "for each example, so expected (batch,), as of F.cross_entropy(…, reduction='none'), "
            "or batches of one example"
        )


class _ExampleSlopes:
    """∂L/∂ξ of every example, from one backward pass where each example has rows of its own.

    The first batch decides: its first and last loss must not depend on the rows of other
    examples. If they do (the batch is not the first axis, or examples interact in the model),
    there is a backward pass for each example.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.indices = {row: index for index, row in enumerate(rows)}
        self.separate: bool | None = None  # whether rows belong to examples; set by the first batch

    def __call__(self, losses: Tensor, leaves: Sequence[Leaf]) -> list[Tensor]:
        """(example, head) for every row, on the CPU, in double precision."""
        batch = len(losses)
        ones = [leaf.ones for leaf in leaves]
        if batch > 1 and self.separate is None:
            self.separate = all(self._alone(losses, ones, example) for example in (0, batch - 1))
        if batch > 1 and self.separate and all(len(leaf) % batch == 0 for leaf in ones):
            by_leaf = [g.unflatten(0, (batch, -1)).sum(1) for g in _gradients(losses.sum(), ones)]
        else:
            by_example = [_gradients(loss, ones) for loss in losses]
            by_leaf = [torch.stack([g.sum(0) for g in gradients]) for gradients in zip(*by_example)]
        slopes = [torch.zeros(batch, row.site.n_heads, dtype=torch.float64) for row in self.indices]
        for leaf, slope in zip(leaves, by_leaf):
            slopes[self._index(leaf)] += slope.to(slopes[0])
        return slopes

    def _index(self, leaf: Leaf) -> int:
        for call in (leaf.call, None):
            if Row(leaf.site, call) in self.indices:
                return self.indices[Row(leaf.site, call)]
        raise RegardError(
            f"{leaf.site.name} ran more often than on the first batch: take calls='shared'"
        )

    @staticmethod
    def _alone(losses: Tensor, ones: Sequence[Tensor], example: int) -> bool:
        batch = len(losses)
        if any(len(leaf) % batch for leaf in ones):
            return False
        for slope in _gradients(losses[example], ones):
            others = slope.unflatten(0, (batch, -1)).clone()
            others[example] = 0
            if bool(others.ne(0).any()):
                return False
        return True


def _gradients(loss: Tensor, ones: Sequence[Tensor]) -> list[Tensor]:
    """With respect to every leaf, 0 where the loss does not depend on it; the graph stays."""
    gradients = torch.autograd.grad(loss, list(ones), retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, ones)]


def _by_leaving_out(
    batches: Iterable[Any], rows: Sequence[Row], losses_on: LossesOn, step: Callable[[], None]
) -> BatchSums:
    for inputs in batches:
        with torch.no_grad():
            whole = losses_on(inputs)
            sums = [torch.zeros(row.site.n_heads, dtype=torch.float64) for row in rows]
            for total, row in zip(sums, rows):
                for head in range(row.site.n_heads):
                    factor = torch.ones(row.site.n_heads)
                    factor[head] = 0.0
                    with scaled_heads({row: factor}):
                        losses = losses_on(inputs)
                    total[head] = float(losses.double().sum()) - float(whole.double().sum())
                    step()
        yield sums, whole.numel()


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None
