"""What several changes amount to at one call: arithmetic on scores, on weights and on values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard.editing.call import AttentionCall
from regard.editing.selection import Selection
from regard.errors import ShapeError
from regard.types import Scores, Weights


class Reweighting(NamedTuple):
    """Weights times a factor."""

    selection: Selection
    factor: Tensor  # broadcasts to (batch, head, query, key)
    renormalise: bool

    def apply(self, weights: Weights, elsewhere: Tensor | float, seen: Tensor) -> Weights:
        """`elsewhere` is the weight of each row that lies on sinks; `seen` are the pairs that may
        attend."""
        new = _where(self.selection.entries, weights * self.factor, weights)
        if self.renormalise:
            before = weights.sum(-1, keepdim=True) + elsewhere
            total = new.sum(-1, keepdim=True) + elsewhere
            new = new * (before / torch.where(total == 0, torch.ones_like(total), total))
        return new

    def cut(self, cut: Cut) -> Reweighting:
        return self._replace(selection=_cut(self.selection, cut), factor=cut(self.factor))


class Replacement(NamedTuple):
    """Other weights; None for uniform ones over what each query may see."""

    selection: Selection
    weights: Tensor | None

    def apply(self, weights: Weights, elsewhere: Tensor | float, seen: Tensor) -> Weights:
        new = self.weights
        if new is None:
            new = seen / seen.sum(-1, keepdim=True).clamp_min(1)
        # Always a `where`: a capture follows the weights through it.
        entries = self.selection.entries
        if entries is None:
            entries = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=weights.device)
        return torch.where(entries, new.to(weights.dtype), weights)

    def cut(self, cut: Cut) -> Replacement:
        weights = None if self.weights is None else cut(self.weights)
        return Replacement(_cut(self.selection, cut), weights)


#: Takes some heads and rows of a tensor that broadcasts to (batch, head, query, key).
Cut = Callable[[Tensor], Tensor]
Step = Reweighting | Replacement


class Plan:
    """The changes of one call, in the order in which they apply."""

    def __init__(self, call: AttentionCall) -> None:
        self.call = call
        self.scale: Tensor | None = None  #: factor of scores
        self.bias: Tensor | None = None  #: added to the scaled scores
        self.allowed: Tensor | None = None  #: pairs that remain
        self.steps: list[Step] = []  #: on weights
        self.output: Tensor | None = None  #: factor of the output, (batch, head, query, 1)
        self.value_factor: Tensor | None = None  #: (batch, head, 1, key)
        self.new_values: list[tuple[Selection, Tensor]] = []

    # -- what changes add

    def allow(self, allowed: Tensor | bool, entries: Tensor | None) -> None:
        if isinstance(allowed, bool):
            allowed = torch.full((1, 1, 1, 1), allowed, device=self.call.device)
        permitted = allowed if entries is None else allowed | ~entries
        self.allowed = permitted if self.allowed is None else self.allowed & permitted

    def add(self, bias: Tensor, entries: Tensor | None) -> None:
        added = _where(entries, bias, torch.zeros_like(bias))
        self.bias = added if self.bias is None else self.bias + added

    def scale_scores(self, factor: Tensor, entries: Tensor | None) -> None:
        factor = _where(entries, factor, torch.ones_like(factor))
        self.scale = factor if self.scale is None else self.scale * factor
        if self.bias is not None:  # infinity times 0 would be NaN
            infinite = self.bias == -torch.inf
            self.bias = torch.where(infinite, self.bias, self.bias * factor)

    def silence(self, rows: Tensor | None) -> None:
        one = torch.ones((1, 1, 1, 1), dtype=self.call.dtype, device=self.call.device)
        self._scale_output(_where(rows, torch.zeros_like(one), one))

    def scale_values(self, factor: Tensor, selection: Selection) -> None:
        factor = _where(selection.entries, factor, torch.ones_like(factor))
        self.value_factor = factor if self.value_factor is None else self.value_factor * factor

    def _scale_output(self, factor: Tensor) -> None:
        self.output = factor if self.output is None else self.output * factor

    # -- what they amount to

    def simplify(self) -> None:
        """Turn factors of weights into biases and factors of outputs and values, where nothing but
        such factors is asked: then weights are not needed.

        A bias comes before a factor, so renormalised factors must come first.
        """
        factors = [step for step in self.steps if isinstance(step, Reweighting)]
        kept = [step.renormalise for step in factors]
        if len(factors) == len(self.steps) and kept == sorted(kept, reverse=True):
            self.steps = [step for step in factors if not self._absorb(step)]

    def spell_out(self) -> None:
        """Leave factors of outputs and those that do not renormalise to the weights, where a
        capture sees them."""
        if self.output is not None:
            self.steps.append(Reweighting(Selection(), self.output, False))
            self.output = None
        if all(isinstance(step, Reweighting) and step.renormalise for step in self.steps):
            self.simplify()

    def _absorb(self, step: Reweighting) -> bool:
        """Take up one factor of weights, if that is possible without them.

        A step that is left applies before the factors of outputs and values, which is the same: it
        is no renormalised one that comes after them.
        """
        selection, factor, renormalise = step
        if renormalise:
            positive = factor.detach() > 0
            if bool((factor.detach() < 0).any()):
                return False
            if factor.requires_grad and not bool(positive.all()):
                return False  # the logarithm of 0 has no gradient
            self.add(torch.log(torch.where(positive, factor, 1.0)), selection.entries)
            if not bool(positive.all()):
                self.allow(positive, selection.entries)
            return True
        one = torch.ones_like(factor)
        if selection.keys is None and factor.shape[3] == 1:
            self._scale_output(_where(selection.rows, factor, one))
            return True
        if selection.queries is None and factor.shape[2] == 1:
            self.scale_values(factor, selection)
            return True
        return False

    @property
    def empty(self) -> bool:
        return not (self.changes_scores or self.steps or self.new_values) and (
            self.output is None and self.value_factor is None
        )

    @property
    def changes_scores(self) -> bool:
        return self.scale is not None or self.bias is not None or self.allowed is not None

    @property
    def needs_weights(self) -> bool:
        """Whether a fused operator cannot do it."""
        return bool(self.steps) or (self.scale is not None and self.scale.shape[3] != 1)

    def touched(self) -> tuple[Tensor, Tensor]:
        """Numbers of the heads and rows whose weights are needed."""
        heads = torch.zeros(self.call.shape.heads, dtype=torch.bool, device=self.call.device)
        rows = torch.zeros(self.call.shape.queries, dtype=torch.bool, device=self.call.device)
        if self.scale is not None and self.scale.shape[3] != 1:
            heads |= True
            rows |= True
        for step in self.steps:
            selection = step.selection
            heads |= True if selection.heads is None else selection.heads.view(-1)
            rows |= True if selection.queries is None else selection.queries.any(0).view(-1)
        return heads.nonzero()[:, 0], rows.nonzero()[:, 0]

    def part(self, cut: Cut, shape: tuple[int, int]) -> Plan:
        """The plan of some heads and rows, for their weights; values are not among it."""
        heads, queries = shape
        few = self.call.shape._replace(heads=heads, queries=queries)
        part = Plan(self.call._replace(shape=few))
        part.scale = None if self.scale is None else cut(self.scale)
        part.bias = None if self.bias is None else cut(self.bias)
        part.allowed = None if self.allowed is None else cut(self.allowed)
        part.output = None if self.output is None else cut(self.output)
        part.steps = [step.cut(cut) for step in self.steps]
        return part

    def without_steps(self) -> Plan:
        """The rest, which a fused operator can do."""
        plan = Plan(self.call)
        plan.scale, plan.bias = self.scale, self.bias
        plan.allowed, plan.output = self.allowed, self.output
        return plan

    # -- arithmetic

    def softmax(
        self, scores: Scores, before: int = 0, after: int = 0, dtype: torch.dtype | None = None
    ) -> Weights:
        """The changed softmax of scores (batch, head, query, column); rows left with nothing are 0.

        There may be columns `before` and `after` the keys: sinks, which stay as they are.
        """
        pad = _padding(before, after, self.call.shape.keys)
        dtype = dtype or scores.dtype
        low = masked(scores)
        scores = scores.to(dtype)
        if self.scale is not None:
            scores = torch.where(low, scores, scores * pad(self.scale, 1.0).to(dtype))
        if self.bias is not None:
            scores = scores + pad(self.bias, 0.0).to(dtype)
        if self.allowed is not None:
            allowed = pad(self.allowed, True)
            scores = scores.masked_fill(~allowed | (low & forbids(allowed)), -torch.inf)
        empty = (scores.detach() == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
        if not (self.steps or before or after):
            return weights
        end = weights.shape[3] - after
        keys = weights[..., before:end]
        sinks = [weights[..., :before], weights[..., end:]]
        elsewhere = sum((sink.sum(-1, keepdim=True) for sink in sinks if sink.shape[3]), 0.0)
        seen = scores.detach() > -torch.inf  # weights may be 0 by underflow
        seen = (seen & (~low | low.all(-1, keepdim=True)))[..., before:end]
        for step in self.steps:
            keys = step.apply(keys, elsewhere, seen)
        if not (before or after):
            return keys
        return torch.cat([sinks[0], keys, sinks[1]], -1)

    def values(self, values: Tensor) -> Tensor:
        """The values (batch, group, key, width), changed; with an axis of heads where these
        differ."""
        heads = self.call.shape.heads
        for selection, new in self.new_values:
            if new.shape[3] not in (1, values.shape[3]):
                raise ShapeError(
                    f"replace_values(): {tuple(new.shape)}, axis width has size {new.shape[3]}, "
                    f"expected {values.shape[3]} at '{self.call.site.name}'"
                )
            if selection.heads is not None or new.shape[1] not in (1, values.shape[1]):
                values = by_head(values, heads)
            if new.shape[1] not in (1, values.shape[1]):
                new = by_head(new, values.shape[1])
            chosen = selection.heads
            if selection.keys is not None:
                keys = selection.keys.mT
                chosen = keys if chosen is None else chosen & keys
            new = new.to(values.dtype)
            values = _where(chosen, new, values) if chosen is not None else new.expand_as(values)
        if self.value_factor is not None:
            factor = self.value_factor
            if factor.shape[1] != 1:
                values = by_head(values, heads)
            values = values * factor.mT.to(values.dtype)
        return values

    def outputs(self, output: Tensor) -> Tensor:
        """The output (batch, head, query, width), changed."""
        return output if self.output is None else output * self.output.to(output.dtype)


def masked(scores: Tensor) -> Tensor:
    """Where a model's own additive mask forbids, be it by -inf or by `finfo.min`."""
    return scores.detach() <= torch.finfo(scores.dtype).min / 2


def forbids(allowed: Tensor) -> Tensor:
    """Rows in which a change forbids something, (batch, head, query, 1).

    There, what a mask of `finfo.min` forbids stays forbidden: else the last pairs that remain would
    be those.
    """
    return ~allowed.all(-1, keepdim=True)


def by_head(tensor: Tensor, heads: int) -> Tensor:
    """(batch, group, key, width) to (batch, head, key, width)."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, 1)


def _where(chosen: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    return new if chosen is None else torch.where(chosen, new, old)


def _cut(selection: Selection, cut: Cut) -> Selection:
    return Selection(*(None if part is None else cut(part) for part in selection))


def _padding(before: int, after: int, keys: int) -> Callable[[Tensor, float], Tensor]:
    """Extends a tensor over keys to columns that are none."""

    def pad(tensor: Tensor, value: float | bool) -> Tensor:
        if not (before or after):
            return tensor
        over_keys = tensor.expand(*tensor.shape[:3], keys)
        if tensor.dtype == torch.bool:
            padded = torch.nn.functional.pad(over_keys.to(torch.uint8), (before, after), value=1)
            return padded.bool()
        return torch.nn.functional.pad(over_keys, (before, after), value=value)

    return pad
