"""Follows numbers through operators: which softmax is attention, and of what.

A softmax is a *candidate*. Its result is followed through dropout, casts, copies, masks and
products, and it is attention when it meets values, that are not parameters, in a product along
the softmax axis. A softmax over an axis that comes from a parameter (classes, experts, codes) is
not; neither is one whose values come from parameters alone, unless its scores do too (learned
queries that attend to each other before they have seen the input).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor

from regard.tracing.names import Names, Place
from regard.tracing.roles import Contraction
from regard.tracing.tags import (
    NOBODY,
    Axis,
    Box,
    Candidate,
    Mark,
    Sources,
    Spread,
    Tag,
    carried,
    covering,
    joined,
    new_axes,
    split_over,
    trimmed,
)

FROM_PARAMETER = "the softmax axis comes from a parameter, as in a classifier, router or codebook"
PARAMETER_SCORES = "the scores are parameters: they do not look at what they weigh"
PARAMETER_VALUES = "the values are parameters or constants"

_captures = itertools.count(1)

Found = Callable[[Candidate, Contraction], None]


class Flow:
    """Tags of one capture, and the rules that move them."""

    def __init__(
        self,
        names: Names,
        found: Found,
        rejected: Callable[[Candidate], None],
        wanted: Callable[[Place, bool], bool],
        graph: bool = False,
    ) -> None:
        self.key = f"regard_{next(_captures)}"
        self._tagged: list[ref[Any]] = []  # storages with a tag, to be cleaned up
        self._prune_at = 1 << 12
        self.names, self.found, self.rejected, self.wanted = names, found, rejected, wanted
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self.candidates = 0
        self.open: list[Candidate] = []  # softmaxes that have met no values yet

    # -- tags

    def tag(self, tensor: Tensor) -> Tag | None:
        """What is known about a tensor's storage."""
        try:
            found: Tag | None = tensor.untyped_storage().__dict__.get(self.key)
        except (NotImplementedError, RuntimeError):  # sparse, nested or functional tensors
            return None
        return found

    def put(self, tensor: Tensor, tag: Tag) -> None:
        storage = tensor.untyped_storage()
        if self.key not in storage.__dict__:
            self._tagged.append(ref(storage))
            if len(self._tagged) > self._prune_at:
                self._tagged = [there for there in self._tagged if there() is not None]
                self._prune_at = max(self._prune_at, 2 * len(self._tagged))
        storage.__dict__[self.key] = tag

    def forget(self, tensor: Tensor) -> None:
        """Nothing is known any more about a storage."""
        if self.tag(tensor) is not None:
            tensor.untyped_storage().__dict__.pop(self.key, None)

    def constants(self, tensors: Sequence[Tensor]) -> None:
        """Parameters and buffers; forgotten again by `clear`."""
        tag = Tag()
        tag.constant = True
        for tensor in tensors:
            if tensor.layout == torch.strided:
                self.put(tensor, tag)

    def lost(self) -> list[Candidate]:
        """Softmaxes of products of two inputs, as attention has, that never met values."""
        return [one for one in self.open if one.lost and one.sides and one.reason is None]

    def clear(self) -> None:
        """Take every tag away, also from storages that live on, and let go of every tensor."""
        for there in self._tagged:
            storage = there()
            if storage is not None:
                storage.__dict__.pop(self.key, None)
        self._tagged.clear()
        for box in list(self.boxes):
            box.tensor = None

    def sources(self, tensor: Tensor) -> Sources:
        """The inputs a tensor comes from by linear maps; itself where there are none."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        return tag.sources or frozenset((tag.same_as or tag.number,))

    def token(self, tensor: Tensor) -> int:
        """A number that stands for this very tensor, or for the one it is a copy of."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        return tag.same_as or tag.number

    def constant(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.constant

    # -- softmax and its spellings

    def softmax(self, scores: Tensor, dim: int, weights: Tensor) -> None:
        """A softmax was taken: mark it as a candidate."""
        mark = self._candidate(scores, dim, weights)
        if mark is not None:
            tag = Tag()
            tag.mark = mark
            self.put(weights, tag)

    def log_softmax(self, scores: Tensor, dim: int, logs: Tensor) -> None:
        mark = self._candidate(scores, dim, logs)
        if mark is not None:
            tag = Tag()
            tag.log = mark
            self.put(logs, tag)

    def _candidate(self, scores: Tensor, dim: int, made: Tensor) -> Mark | None:
        if made.dim() == 0:
            return None
        place = self.names.place()
        if place is None:
            return None
        self.candidates += 1
        dim %= made.dim()
        candidate = Candidate(place, dim, tuple(made.shape))
        tag = self.tag(scores)
        if tag is not None:
            candidate.sides = tag.sides
            if tag.constant:
                candidate.kind = "constant"
            elif _within((scores.shape[dim], scores.stride(dim)), tag.features):
                candidate.reason = FROM_PARAMETER
        if not self.wanted(place, candidate.reason is None):
            return None
        self.open.append(candidate)
        return Mark(candidate, _axes(made))

    def exponential(self, logs: Tensor, made: Tensor) -> None:
        """exp of log-weights is weights; of anything else, what may yet be divided by its sum."""
        before = self.tag(logs)
        tag = self._blend((logs,), made)
        if before is not None and before.log is not None:
            axes = carried(before.log.axes, logs, made)
            if axes is not None:
                tag.log, tag.mark = None, before.log._replace(axes=axes)
        else:
            tag.exp = tag.number
        self.put(made, tag)

    def log_sum_exp(self, scores: Tensor, dims: Sequence[int], made: Tensor) -> None:
        if len(dims) == 1:
            dim = dims[0] % scores.dim()
            tag = Tag()
            tag.total = (self.token(scores), (scores.shape[dim], scores.stride(dim)), True)
            self.put(made, tag)

    def _normalised(self, above: Tensor, below: Tensor, made: Tensor, logs: bool) -> bool:
        """exp / sum, or scores − log-sum-exp, where one was made from the other."""
        mine, total = self.tag(above), self.tag(below)
        if mine is None or total is None or total.total is None:
            return False
        number, axis, exact = total.total
        if number != (mine.number if logs else mine.exp) or number == 0:
            return False
        dim = covering(axis, above)
        if axis[0] == 1:
            dim = above.dim() - 1
        if dim is None:
            return False
        mark = self._candidate(above, dim, made)
        tag = Tag()
        if mark is not None:
            mark.candidate.sides = mine.sides
            if not exact:
                mark.candidate.kind = "partial"
            tag.log, tag.mark = (mark, None) if logs else (None, mark)
        self.put(made, tag)
        return True

    # -- elementwise operators

    def pointwise(self, inputs: Sequence[Tensor], made: Tensor, *, shifted: bool = False) -> None:
        """An operator that works place by place, broadcasting its inputs."""
        tag = self._blend(inputs, made)
        if shifted and tag.total is not None:  # weights divided by it sum to less than 1
            tag.total = (*tag.total[:2], False)
        self.put(made, tag)

    def add(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """A broadcast sum of two linear maps is the inside of additive attention."""
        tag = self._blend((one, other), made)
        if one.shape != made.shape or other.shape != made.shape:
            mine, theirs = self.tag(one), self.tag(other)
            if mine is not None and theirs is not None and mine.sources and theirs.sources:
                tag.sides = (mine.sources, theirs.sources)
        self.put(made, tag)

    def subtract(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        if not self._normalised(one, other, made, logs=True):
            self.pointwise((one, other), made)

    def divide(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        if not self._normalised(one, other, made, logs=False):
            self.pointwise((one, other), made)

    def multiply(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """Dropout, a mask, weights times values that wait for their sum, or a plain product."""
        if self._normalised(one, other, made, logs=False):
            return
        if self._normalised(other, one, made, logs=False):
            return
        for weights, factor in ((one, other), (other, one)):
            tag = self.tag(weights)
            if tag is None or tag.mark is None:
                continue
            theirs = self.tag(factor)
            if theirs is not None and theirs.noise:
                self.dropout(weights, made)
                return
            if self._spread(tag.mark, weights, factor, made):
                return
            tag.mark.candidate.kind = "partial"
        self.pointwise((one, other), made)

    def _spread(self, mark: Mark, weights: Tensor, values: Tensor, made: Tensor) -> bool:
        """Weights stretched over a feature axis of the values, to be summed over the keys."""
        if not new_axes(weights, made):
            return False
        axes = carried(mark.axes, weights, made)
        if axes is None:
            return False
        shift = made.dim() - values.dim()
        over = []
        for index, axis in enumerate(axes):
            dim = covering(axis, made)
            if dim is not None and (
                dim < shift or values.shape[dim - shift] == 1 or values.stride(dim - shift) == 0
            ):
                over.append(index)
        box = self.boxed(weights, mark)
        tag = Tag()
        tag.spread = Spread(mark, axes, tuple(over), self.constant(values), values.detach(), box)
        if axes[mark.candidate.key][0] == 1:  # one key: nothing is left to sum
            self._settle(mark, Contraction.of_sum(tag.spread, made, made))
        self.put(made, tag)
        return True

    def summed(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """A sum: of exponentials, of weights times values, or of anything else."""
        tag = self.tag(given)
        if tag is None:
            return
        wanted = [dim % given.dim() for dim in dims] if given.dim() else []
        if tag.spread is not None:
            key = tag.spread.axes[tag.spread.mark.candidate.key]
            single = covering(key, given)
            cut = split_over(key, given) or ([] if single is None else [single])
            if key[0] == 1 or (cut and all(dim in wanted for dim in cut)):
                self._settle(tag.spread.mark, Contraction.of_sum(tag.spread, given, made))
            return
        if tag.exp and len(wanted) == 1:
            total = Tag()
            axis = (given.shape[wanted[0]], given.stride(wanted[0]))
            total.total = (tag.exp, axis, True)
            self.put(made, total)
        elif tag.constant:
            self.pointwise((given,), made)

    def boxed(self, weights: Tensor, mark: Mark) -> Box:
        """The weights as they are now, kept outside their storage's tag."""
        if mark.before is not None:
            return mark.before
        kept = weights if self.graph else weights.detach()
        box = Box(kept, trimmed(mark.axes, weights), int(weights.storage_offset()))
        self.boxes.add(box)
        return box

    def dropout(self, weights: Tensor, made: Tensor) -> None:
        """What comes out is followed; what went in is what will be recorded."""
        tag = self.tag(weights)
        if tag is None or tag.mark is None:
            self.pointwise((weights,), made)
            return
        axes = carried(tag.mark.axes, weights, made)
        if axes is not None:
            after = Tag()
            after.mark = Mark(tag.mark.candidate, axes, self.boxed(weights, tag.mark))
            self.put(made, after)

    def dropout_copy(self, weights: Tensor, copy: Tensor) -> None:
        """Dropout in place is about to happen: `copy` is what the weights were."""
        tag = self.tag(weights)
        assert tag is not None and tag.mark is not None
        axes = carried(tag.mark.axes, weights, copy)
        if axes is not None and tag.mark.before is None:
            box = Box(copy, trimmed(axes, copy), int(copy.storage_offset()))
            self.boxes.add(box)
            after = Tag()
            after.mark = tag.mark._replace(before=box)
            self.put(weights, after)

    def noise(self, made: Tensor) -> None:
        """Random numbers: weights multiplied by them are weights after dropout."""
        tag = Tag()
        tag.noise = True
        self.put(made, tag)

    def fixed(self, made: Tensor, *, zero: bool = False) -> None:
        """Constants: made from nothing."""
        tag = Tag()
        tag.constant, tag.zero = True, zero
        self.put(made, tag)

    def copied(self, source: Tensor, made: Tensor) -> None:
        """A copy in another layout; remembers how a permuted tensor lay before."""
        tag = self._blend((source,), made)
        tag.same_as = self.token(source)  # a linear map of the copy is one of the source
        if source.dim() >= 4 and not source.is_contiguous():
            tag.copied = (tuple(source.shape), source.stride())
        self.put(made, tag)

    def selected(self, source: Tensor, dim: int, made: Tensor) -> None:
        """Some entries along an axis, as the best k: of a parameter's axis, still one."""
        before = self.tag(source)
        if before is None:
            return
        tag = Tag()
        tag.sources, tag.constant, tag.sides = before.sources, before.constant, before.sides
        if source.dim() and made.dim():
            axis = (source.shape[dim], source.stride(dim))
            if _within(axis, before.features):
                tag.features = ((made.shape[dim], made.stride(dim)),)
        self.put(made, tag)

    def absolute_sum(self, given: Tensor, dims: Sequence[int], made: Tensor) -> None:
        """The sum of absolute values: of exponentials, the same as their sum."""
        tag = self.tag(given)
        if tag is not None and tag.exp:
            self.summed(given, dims, made)
        else:
            self.pointwise((given,), made) if self.constant(given) else None

    def unknown(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """An operator without a rule: of constants alone it makes a constant."""
        if inputs and all(self.constant(tensor) for tensor in inputs):
            for tensor in made:
                self.fixed(tensor)

    def moved(self, source: Tensor, made: Tensor) -> None:
        """Numbers rearranged in a way that is not followed axis by axis."""
        before = self.tag(source)
        if before is not None and (before.sources or before.constant):
            tag = Tag()
            tag.sources, tag.constant = before.sources, before.constant
            self.put(made, tag)

    def written(self, target: Tensor, source: Tensor) -> None:
        """A part of a storage was overwritten, as in a cache: what is known adds up."""
        mine, theirs = self.tag(target), self.tag(source)
        tag = Tag()
        tag.sources = joined(
            NOBODY if mine is None else mine.sources,
            frozenset((self.token(source),)) if theirs is None else theirs.sources,
        )
        tag.constant = mine is not None and theirs is not None and mine.constant and theirs.constant
        tag.written = True
        self.put(target, tag)

    def opposite(self, mask: Tensor, made: Tensor) -> None:
        """The negation of a boolean mask."""
        tag = self.tag(made)
        if tag is None:
            tag = Tag()
            self.put(made, tag)
        tag.forbids = mask.detach()

    def filled(self, given: Tensor, mask: Tensor, value: Any, made: Tensor) -> None:
        """`masked_fill`; zeros that become -inf where a mask forbids are that mask."""
        negated, zeros = self.tag(mask), self.tag(given)
        allowed = None if negated is None else negated.forbids
        if allowed is not None and zeros is not None and zeros.zero and value == -math.inf:
            tag = Tag()
            tag.forbids = allowed
            self.put(made, tag)
            return
        if zeros is not None and zeros.mark is not None:
            zeros.mark.candidate.kind = "partial"
        self.pointwise((given,), made)

    def concatenated(self, inputs: Sequence[Tensor], dim: int, made: Tensor) -> None:
        """Joined along an axis: of several maps of one input that axis comes from parameters."""
        tags = [self.tag(tensor) for tensor in inputs if tensor.numel()]
        for known in tags:
            if known is not None and known.mark is not None:
                known.mark.candidate.lost = True
        tag = Tag()
        if tags and all(known is not None and known.constant for known in tags):
            tag.constant = True
        sources, same = NOBODY, len(tags) > 1
        for known in tags:
            mine = NOBODY if known is None else known.sources
            same = same and bool(mine) and known is not None and known.sides is None
            same = same and (not sources or mine == sources)
            sources = joined(sources, mine)
        tag.sources = sources
        if same and made.dim():
            dim %= made.dim()
            tag.features = ((made.shape[dim], made.stride(dim)),)
        if dim == 0:
            tag.copied = _cut_apart(inputs)
        sides = [known.sides for known in tags if known is not None and known.sides is not None]
        if (sides and len(sides) == len(tags)) or sides:
            tag.sides = sides[0]
        if tag.sources or tag.constant or tag.sides is not None or tag.copied is not None:
            self.put(made, tag)

    def _blend(self, inputs: Sequence[Tensor], made: Tensor) -> Tag:
        """What is known about a result from what is known about its inputs."""
        known = [(tensor, self.tag(tensor)) for tensor in inputs]
        blended = Tag()
        blended.constant = all(tag is not None and tag.constant for _, tag in known)
        for tensor, tag in known:
            if tag is None:  # nothing is known: it stands for itself
                blended.sources = joined(blended.sources, frozenset((self.token(tensor),)))
            else:
                blended.sources = joined(blended.sources, tag.sources)
                blended.noise = blended.noise or tag.noise
        if blended.constant:
            return blended
        features: tuple[Axis, ...] = ()
        scores = False
        for tensor, tag in known:
            if tag is None:
                continue
            blended.sides = blended.sides or tag.sides
            if tag.features:
                features += carried(tag.features, tensor, made) or ()
            elif tag.sides is not None:
                scores = True
            if tag.exp:
                blended.exp = blended.number
            if tag.total is not None and blended.total is None:
                blended.total = (*tag.total[:2], tag.total[2] and len(known) == 1)
            for name in ("mark", "log"):
                mark: Mark | None = getattr(tag, name)
                if mark is not None:
                    axes = carried(mark.axes, tensor, made)
                    if axes is not None:
                        added = new_axes(tensor, made)
                        before = mark.before if not added else None
                        setattr(blended, name, Mark(mark.candidate, axes + added, before))
        if not scores:  # a sum with scores of two inputs is such scores, as with learned positions
            blended.features = features[:4]
        return blended

    # -- products

    def linear(self, given: Tensor, made: Tensor) -> None:
        """A linear map whose weight is out of sight: quantised, or a convolution."""
        tag = Tag()
        tag.sources = frozenset((self.token(given),))
        self.put(made, tag)

    def product(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """A matrix product (…, m, c) × (…, c, n): attention, a linear map, or scores."""
        mine, theirs = self.tag(one), self.tag(other)
        tag = Tag()
        first = mine is not None and mine.constant
        second = theirs is not None and theirs.constant
        for weights, values, known, contracted, rows in (
            (one, other, mine, one.dim() - 1, one.dim() - 2),
            (other, one, theirs, other.dim() - 2, other.dim() - 1),
        ):
            if known is not None and known.mark is not None:
                if along(known.mark, weights, contracted):
                    contraction = Contraction(
                        weights,
                        rows,
                        values,
                        made,
                        known.mark,
                        swapped=weights is other,
                    )
                    self._settle(known.mark, contraction)
                elif self.constant(values):
                    tag.mark = self._mixed(known.mark, weights, contracted, rows, made)
                else:
                    known.mark.candidate.lost = True
        if first and second:
            tag.constant, tag.sources = True, frozenset((self.token(one),))
        elif second:
            tag.sources = frozenset((self.token(one),))
            tag.features = ((made.shape[-1], made.stride(-1)),)
            if mine is not None:
                tag.features += _rows_carried(mine.features, one, made)
                if mine.sides is not None and made.shape[-1] == 1:
                    tag.sides = mine.sides
        elif first:
            tag.sources = frozenset((self.token(other),))
            tag.features = ((made.shape[-2], made.stride(-2)),)
        else:
            tag.sides = (self.sources(one), self.sources(other))
        self.put(made, tag)

    def _mixed(
        self, mark: Mark, weights: Tensor, contracted: int, rows: int, made: Tensor
    ) -> Mark | None:
        """Weights whose heads a parameter mixes ("talking heads") are weights still."""
        axes = []
        swapped = contracted < rows
        to_rows, to_columns = (made.dim() - 1, made.dim() - 2) if swapped else (-2, -1)
        for axis in mark.axes:
            dim = covering(axis, weights)
            if dim is None:
                axes.append((1, 0))
            elif dim == contracted:
                if axis != (weights.shape[dim], weights.stride(dim)):
                    return None
                axes.append((made.shape[to_columns], made.stride(to_columns)))
            else:
                target = to_rows if dim == rows else dim
                axes.append((axis[0], made.stride(target) * (axis[1] // weights.stride(dim))))
        mark.candidate.kind = "signed"
        return Mark(mark.candidate, tuple(axes))

    def _settle(self, mark: Mark, contraction: Contraction) -> None:
        candidate = mark.candidate
        if candidate.done:
            return
        candidate.done = True
        self.open.remove(candidate)
        constant = contraction.constant
        if constant is None:
            constant = self.constant(contraction.values)
        if candidate.kind == "constant":
            candidate.kind = "distribution"
            if not constant:  # a learned mix of layers, or of positions whatever is there
                candidate.reason = PARAMETER_SCORES
        elif candidate.reason is None and constant:
            candidate.reason = PARAMETER_VALUES
        if candidate.reason is not None:
            self.rejected(candidate)
        else:
            self.found(candidate, contraction)


def along(mark: Mark, weights: Tensor, contracted: int) -> bool:
    """Whether a product sums along the softmax axis."""
    size, stride = mark.axes[mark.candidate.key]
    if size == 1:
        return weights.shape[contracted] == 1
    return weights.stride(contracted) == stride and weights.shape[contracted] > 1


def _cut_apart(inputs: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Slices of one tensor's features put behind each other: heads, as a copy would show them."""
    if len(inputs) < 2 or inputs[0].dim() != 3 or len({tensor.shape for tensor in inputs}) > 1:
        return None
    if len({tensor.untyped_storage()._cdata for tensor in inputs}) > 1:
        return None
    step = int(inputs[1].storage_offset()) - int(inputs[0].storage_offset())
    return (len(inputs), *inputs[0].shape), (step, *inputs[0].stride())


def _axes(tensor: Tensor) -> tuple[Axis, ...]:
    return tuple(zip(tensor.shape, tensor.stride()))


def _within(axis: Axis, features: tuple[Axis, ...]) -> bool:
    """Whether an axis lies inside one that comes from a parameter."""
    size, stride = axis
    return size > 1 and any(step <= stride < step * length for length, step in features)


def _rows_carried(features: tuple[Axis, ...], given: Tensor, made: Tensor) -> tuple[Axis, ...]:
    """Axes among the rows of a product's first factor, in its result."""
    found = []
    for axis in features:
        dim = covering(axis, given)
        if dim is not None and dim < given.dim() - 1:
            found.append((axis[0], made.stride(dim) * (axis[1] // given.stride(dim))))
    return tuple(found)
