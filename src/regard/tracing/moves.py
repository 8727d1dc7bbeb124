"""Keeps tags where the numbers are, and moves them through operators that work place by place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor

from regard.record.held import detached
from regard.tracing.tags import (
    NOBODY,
    Axis,
    Box,
    Candidate,
    Forbids,
    Mark,
    Sources,
    Tag,
    carried,
    covers,
    joined,
    new_axes,
    trimmed,
    within,
)
from regard.types import Kind

_captures = itertools.count(1)


class Tagging:
    """Tags of one capture, by storage."""

    def __init__(self, graph: bool) -> None:
        self.key = f"regard_{next(_captures)}"
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self._tagged: list[ref[Any]] = []  # storages with a tag, to be cleaned up
        self._prune_at = 1 << 12

    def tag(self, tensor: Tensor) -> Tag | None:
        """What is known about a tensor's storage."""
        try:
            found: Tag | None = tensor.untyped_storage().__dict__.get(self.key)
        except (NotImplementedError, RuntimeError):  # sparse, nested or functional tensors
            return None
        return found

    def put(self, tensor: Tensor, tag: Tag) -> None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, nested or functional tensors
            return
        known = storage.__dict__
        before = known.get(self.key)
        if before is None:
            self._tagged.append(ref(storage))
            if len(self._tagged) > self._prune_at:
                self._tagged = [there for there in self._tagged if there() is not None]
                self._prune_at = max(self._prune_at, 2 * len(self._tagged))
        elif before.parameter:
            return
        known[self.key] = tag

    def forget(self, tensor: Tensor) -> None:
        """Nothing is known any more about a storage."""
        if self.tag(tensor) is not None:
            tensor.untyped_storage().__dict__.pop(self.key, None)

    def constants(self, tensors: Sequence[Tensor]) -> None:
        """Parameters and buffers; forgotten again by `clear`."""
        for tensor in tensors:
            if tensor.layout == torch.strided:
                tag = Tag()
                tag.constant = tag.parameter = True
                self.put(tensor, tag)

    def clear(self) -> None:
        """Take every tag away, also from storages that live on, and let go of every tensor."""
        for there in self._tagged:
            storage = there()
            if storage is not None:
                storage.__dict__.pop(self.key, None)
        self._tagged.clear()
        for box in list(self.boxes):
            box.tensor = None

    def protect(self, target: Tensor) -> None:
        """A storage is about to change: weights before dropout that lie there are copied."""
        for box in list(self.boxes):
            held = box.tensor
            if held is not None and held.untyped_storage()._cdata == _address(target):
                fresh = torch.empty(0, dtype=held.dtype, device=held.device)
                place = held.untyped_storage().clone()
                box.tensor = fresh.set_(place, held.storage_offset(), held.shape, held.stride())

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


def _address(tensor: Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


class Moves(Tagging):
    """How tags move through operators that attend to nothing themselves."""

    def pointwise(
        self,
        inputs: Sequence[Tensor],
        made: Tensor,
        *,
        shifted: bool = False,
        kind: Kind = "signed",
    ) -> None:
        """An operator that works place by place, broadcasting its inputs.

        `kind` is what it makes of weights.
        """
        tag = self._blend(inputs, made)
        if tag.mark is not None and tag.mark.candidate.kind != "signed":
            tag.mark.candidate.kind = kind
        if shifted and tag.total is not None:  # weights divided by it sum to less than 1
            tag.total = (*tag.total[:2], False)
        self.put(made, tag)

    def add(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """A broadcast sum of two linear maps is the inside of additive attention."""
        tag = self._blend((one, other), made)
        if tag.mark is not None:
            tag.mark.candidate.kind = "signed"
        if one.shape != made.shape or other.shape != made.shape:
            mine, theirs = self.tag(one), self.tag(other)
            if mine is not None and theirs is not None and mine.sources and theirs.sources:
                tag.sides = (mine.sources, theirs.sources)
        self.put(made, tag)

    def boxed(self, weights: Tensor, mark: Mark) -> Box:
        """The weights as they are now, kept outside their storage's tag."""
        if mark.before is not None:
            return mark.before
        kept = weights if self.graph else detached(weights)
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
        """Constants: made from nothing; or written into a part of something, which it stays."""
        before = self.tag(made)
        if before is not None and not covers(made):
            if before.mark is not None:
                before.mark.candidate.kind = "partial"
            return
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
        if before.mark is not None:
            self.lose(before.mark.candidate)
        tag = Tag()
        tag.sources, tag.constant, tag.sides = before.sources, before.constant, before.sides
        if source.dim() and made.dim():
            axis = (source.shape[dim], source.stride(dim))
            if within(axis, before.features):
                tag.features = ((made.shape[dim], made.stride(dim)),)
        self.put(made, tag)

    def unknown(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """An operator without a rule: of constants alone it makes a constant."""
        if inputs and all(self.constant(tensor) for tensor in inputs):
            for tensor in made:
                self.fixed(tensor)

    def moved(self, source: Tensor, made: Tensor) -> None:
        """Numbers rearranged in a way that is not followed axis by axis."""
        before = self.tag(source)
        if before is not None and before.mark is not None:
            self.lose(before.mark.candidate)
        if before is not None and (before.sources or before.constant):
            tag = Tag()
            tag.sources, tag.constant = before.sources, before.constant
            self.put(made, tag)

    def written(self, target: Tensor, source: Tensor) -> None:
        """A part of a storage was overwritten, as in a cache: what is known adds up."""
        mine, theirs = self.tag(target), self.tag(source)
        if theirs is not None and theirs.mark is not None:
            self.lose(theirs.mark.candidate)
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
        tag.forbids = Forbids(mask.detach(), tuple(made.shape), made.stride())

    def filled(self, given: Tensor, mask: Tensor, value: Any, made: Tensor) -> None:
        """`masked_fill`; zeros that become -inf where a mask forbids are that mask."""
        negated, zeros = self.tag(mask), self.tag(given)
        forbids = None if negated is None else negated.forbids
        allowed = None if forbids is None else forbids.by(mask)
        empty = zeros is not None and zeros.zero and value == -math.inf
        if empty and allowed is not None and allowed.shape == made.shape:
            tag = Tag()
            tag.forbids = Forbids(allowed, tuple(made.shape), made.stride())
            self.put(made, tag)
            return
        if zeros is not None and zeros.mark is not None:
            zeros.mark.candidate.kind = "partial"
        self.pointwise((given,), made, kind="partial")

    def concatenated(self, inputs: Sequence[Tensor], dim: int, made: Tensor) -> None:
        """Joined along an axis: of several maps of one input that axis comes from parameters."""
        tags = [self.tag(tensor) for tensor in inputs if tensor.numel()]
        for known in tags:
            if known is not None and known.mark is not None:
                self.lose(known.mark.candidate)
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

    def lose(self, candidate: Candidate) -> None:
        """A candidate went where it is not followed."""

    def linear(self, given: Tensor, made: Tensor) -> None:
        """A linear map whose weight is out of sight: quantised, or a convolution."""
        tag = Tag()
        tag.sources = self._behind(given, self.tag(given))
        self.put(made, tag)

    def _behind(self, given: Tensor, tag: Tag | None) -> Sources:
        """The input of a linear map, and what is behind that: q and k may be made in two steps."""
        if tag is None:
            return frozenset((self.token(given),))
        return joined(frozenset((tag.same_as or tag.number,)), tag.sources)

    def _blend(self, inputs: Sequence[Tensor], made: Tensor) -> Tag:
        """What is known about a result from what is known about its inputs."""
        known = [(tensor, self.tag(tensor)) for tensor in inputs]
        blended = Tag()
        constant, sources = True, NOBODY
        for tensor, tag in known:
            if tag is None:  # nothing is known: it stands for itself
                constant = False
                sources = joined(sources, frozenset((self.token(tensor),)))
            else:
                constant = constant and tag.constant
                sources = joined(sources, tag.sources)
                if tag.noise:
                    blended.noise = True
        blended.sources = sources
        if constant:
            blended.constant = True
            return blended
        features: tuple[Axis, ...] = ()
        scores = False
        for tensor, tag in known:
            if tag is None:
                continue
            if tag.sides is not None and blended.sides is None:
                blended.sides = tag.sides
            if tag.features:
                features += carried(tag.features, tensor, made) or ()
            elif tag.sides is not None:
                scores = True
            if tag.exp:
                blended.exp = blended.number
            if tag.total is not None and blended.total is None:
                blended.total = (*tag.total[:2], tag.total[2] and len(known) == 1)
            if tag.mark is not None:
                blended.mark = _carried(tag.mark, tensor, made) or blended.mark
            if tag.log is not None:
                blended.log = _carried(tag.log, tensor, made) or blended.log
        if not scores:  # a sum with scores of two inputs is such scores, as with learned positions
            blended.features = features[:4]
        return blended


def _carried(mark: Mark, source: Tensor, made: Tensor) -> Mark | None:
    """Where weights lie in what an operator that works place by place made of them."""
    axes = carried(mark.axes, source, made)
    if axes is None:
        return None
    added = new_axes(source, made)
    return Mark(mark.candidate, axes + added, None if added else mark.before)


def _cut_apart(inputs: Sequence[Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Slices of one tensor's features put behind each other: heads, as a copy would show them."""
    if len(inputs) < 2 or inputs[0].dim() != 3 or len({tensor.shape for tensor in inputs}) > 1:
        return None
    if len({tensor.untyped_storage()._cdata for tensor in inputs}) > 1:
        return None
    step = int(inputs[1].storage_offset()) - int(inputs[0].storage_offset())
    return (len(inputs), *inputs[0].shape), (step, *inputs[0].stride())
