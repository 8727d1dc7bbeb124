"""Keeps tags where the numbers are, and moves them through operators that work place by place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor

from regard.record.held import detached
from regard.tracing.axes import Dims, Factor, Origin, axis, dims_of, fresh_dims, laid_out, merged
from regard.tracing.movement import Again, Movement, Start, View, expanded
from regard.tracing.tags import (
    NOBODY,
    Box,
    Candidate,
    Forbids,
    Late,
    Mark,
    Sources,
    Tag,
    Total,
    covers,
    joined,
    stretched,
)
from regard.types import Kind

_captures = itertools.count(1)
_LINEAR = {
    "add", "sub", "rsub", "mul", "div", "neg", "masked_fill", "where", "clone", "_to_copy", "copy",
    "contiguous", "tril", "triu", "nan_to_num", "native_dropout",
}  # fmt: skip
_COPIES = {"clone", "_to_copy", "copy", "contiguous", "clamp", "clamp_min", "add", "reciprocal"}
_LINEAR_OF_SUMS = _LINEAR | _COPIES


class Tagging:
    """Tags of one capture, by storage."""

    def __init__(self, graph: bool) -> None:
        self.key = f"regard_{next(_captures)}"
        self.operator = ""  # that is being followed
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self.chosen_by: dict[tuple[int, int], set[Origin]] = {}  # by index: axes it chose from
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
        elif before.parameter and not tag.written:
            return
        known[self.key] = tag

    def forget(self, tensor: Tensor) -> None:
        """Nothing is known any more about a storage."""
        if self.tag(tensor) is not None:
            tensor.untyped_storage().__dict__.pop(self.key, None)

    def constants(self, tensors: Sequence[Tensor]) -> None:
        """Parameters and buffers; forgotten again by `clear`."""
        for outer in tensors:
            for tensor in plain_tensors(outer):
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
        self.chosen_by.clear()
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

    def dims(self, tensor: Tensor) -> Dims:
        """What each dimension of a tensor is made of; of an unknown one, axes of its own."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        if tag.factors is None:
            dims = fresh_dims(tensor, "parameter" if tag.constant else "data")
            tag.factors = laid_out(dims, tensor)
            return dims
        return dims_of(tensor, tag.factors)

    def view(self, tensor: Tensor) -> View:
        """Where the entries of a tensor lie, and how they came there."""
        self.dims(tensor)
        tag = self.tag(tensor)
        assert tag is not None and tag.factors is not None
        item = tensor.element_size()
        size = tensor.untyped_storage().nbytes() // item
        factors = () if tag.written else tag.factors  # written in parts: nobody knows from where
        return View.of(tensor, tag.moved or Start(factors, item, size))


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
        if tag.mark is not None and tag.mark.kind != "signed":
            tag.mark = tag.mark._replace(kind=kind)
        if shifted and tag.total is not None:  # weights divided by it sum to less than 1
            tag.total = tag.total._replace(exact=False, shifted=True)
        self.put(made, tag)

    def add(self, one: Tensor, other: Tensor, made: Tensor) -> None:
        """A broadcast sum of two linear maps is the inside of additive attention."""
        tag = self._blend((one, other), made)
        if tag.mark is not None:
            tag.mark = tag.mark._replace(kind="signed")
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
        box = Box(kept, self.dims(weights))
        self.boxes.add(box)
        return box

    def dropout(self, weights: Tensor, made: Tensor) -> None:
        """What comes out is followed; what went in is what will be recorded."""
        tag = self.tag(weights)
        if tag is None or tag.mark is None:
            self.pointwise((weights,), made)
            return
        after = Tag()
        after.mark = tag.mark._replace(before=self.boxed(weights, tag.mark))
        after.factors = self._spread_out((weights,), made)
        self.put(made, after)

    def dropout_copy(self, weights: Tensor, copy: Tensor) -> None:
        """Dropout in place is about to happen: `copy` is what the weights were."""
        tag = self.tag(weights)
        assert tag is not None and tag.mark is not None
        if tag.mark.before is None:
            box = Box(copy, self.dims(weights))
            self.boxes.add(box)
            after = Tag()
            after.mark, after.factors = tag.mark._replace(before=box), tag.factors
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
                before.mark = before.mark._replace(kind="partial")
            return
        tag = Tag()
        tag.constant, tag.zero = True, zero
        self.put(made, tag)

    def copied(self, source: Tensor, made: Tensor) -> None:
        """A copy, maybe in another layout."""
        tag = self._blend((source,), made)
        tag.same_as = self.token(source)  # a linear map of the copy is one of the source
        if tag.moved is None and self._overlaps(source):
            tag.moved = self._movement(source, made, lambda numbers: numbers)
        self.put(made, tag)

    def _overlaps(self, source: Tensor) -> bool:
        """Whether a view shows entries of its storage more than once, as sliding windows do."""
        tag = self.tag(source)
        if tag is None or tag.factors is None or source.dim() < 2:
            return False
        own = {factor.origin for factor in tag.factors}
        return any(
            origin.kind == "gathered" and origin not in own
            for pieces in dims_of(source, tag.factors)
            for _, origin in pieces
        )

    def selected(self, source: Tensor, dim: int, made: Tensor) -> None:
        """Some entries along an axis, as the best k: of a parameter's axis, still one."""
        tag = self._moved_tag(source)
        tag.factors = self.resized(source, made)
        self.put(made, tag)

    def unknown(self, inputs: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """An operator without a rule: of constants alone it makes a constant; else dimensions of
        the same number are taken for the same axes."""
        constant = bool(inputs) and all(self.constant(tensor) for tensor in inputs)
        first = next((tensor for tensor in inputs if not self.constant(tensor)), None)
        sources = NOBODY if first is None else self.sources(first)
        for tensor in made:
            if tensor.layout != torch.strided:
                continue
            if constant and not covers(tensor):
                self.fixed(tensor)
                continue
            tag = Tag()
            tag.sources, tag.constant = sources, constant
            alike = [each for each in inputs if each.dim() == tensor.dim() > 0]
            if alike:
                alike.sort(key=lambda each: (self.constant(each), each.shape != tensor.shape))
                tag.factors = self.resized(alike[0], tensor)
            self.put(tensor, tag)

    def attended(self, query: Tensor, value: Tensor, output: Tensor) -> None:
        """An operator that attends: places of the queries, features of the values."""
        tag = Tag()
        if query.dim() == value.dim() == output.dim() and not query.is_nested:
            tag.factors = laid_out([*self.dims(query)[:-1], self.dims(value)[-1]], output)
        self.put(output, tag)

    def moved(self, source: Tensor, made: Tensor, again: Again | None = None) -> None:
        """Entries rearranged; `again` does the same to numbers."""
        tag = self._moved_tag(source)
        tag.factors = self.resized(source, made)
        if again is not None and not tag.constant:
            tag.moved = self._movement(source, made, again)
        if tag.sources or tag.constant or tag.factors is not None:
            self.put(made, tag)

    def embedded(self, table: Tensor, ids: Tensor, made: Tensor) -> None:
        """Rows of a table, one for each id: constant where the ids are."""
        tag = Tag()
        tag.constant = self.constant(table) and self.constant(ids)
        tag.factors = laid_out([*self.dims(ids), axis(made.shape[-1], "feature")], made)
        self.put(made, tag)

    def _meet_edges(self, source: Tensor, dim: int, index: Tensor, tag: Tag) -> None:
        """Nodes chosen by the edges that point to them: sums of exponentials, or queries."""
        before = self.tag(source)
        total = None if before is None else before.total
        if total is not None and total.segments is not None:
            if total.dim == dim and same_index(total.segments, along_dim(index, dim)):
                tag.total = total._replace(at_edges=True)
        elif index.dim() == 1 and not tag.constant:
            origin = _last(self.dims(source)[dim])
            if origin is not None:
                self.chosen_by.setdefault(_identity(index), set()).add(origin)

    def chosen_from(self, index: Tensor) -> set[Origin]:
        """The axes from which an index of edges chose."""
        return self.chosen_by.get(_identity(index), set())

    def gathered(self, source: Tensor, dim: int, index: Tensor, made: Tensor, again: Again) -> None:
        """Entries chosen along one dimension."""
        tag = self._moved_tag(source)
        tag.constant = tag.constant and self.constant(index)
        dim %= max(1, source.dim())
        self._meet_edges(source, dim, index, tag)
        if made.dim() and source.dim() == made.dim():
            dims = self.dims(source)
            for other, size in enumerate(made.shape):
                if other == dim or size != source.shape[other]:
                    dims[other] = axis(size, "gathered", _last(dims[other]))
            tag.factors = laid_out(dims, made)
        if not tag.constant:
            tag.moved = self._movement(source, made, again)
        self.put(made, tag)

    def indexed(self, source: Tensor, indices: Sequence[Tensor | None], made: Tensor) -> None:
        """Advanced indexing with tensors: their dimensions take the place of those indexed."""
        tag = self._moved_tag(source)
        tag.factors = self._indexed_factors(source, indices, made)
        tag.constant = tag.constant and all(
            self.constant(index) for index in indices if index is not None
        )
        at = [dim for dim, index in enumerate(indices) if index is not None]
        if len(at) == 1:
            self._meet_edges(source, at[0], indices[at[0]], tag)  # type: ignore[arg-type]
        if not tag.constant:
            tag.moved = self._movement(
                source, made, lambda numbers: torch.ops.aten.index.Tensor(numbers, list(indices))
            )
        self.put(made, tag)

    def windows(self, source: Tensor, made: Tensor, size: Sequence[int], again: Again) -> None:
        """Patches around places: (batch, channel × window, place) of (batch, channel, *map)."""
        tag = self._moved_tag(source)
        dims = self.dims(source)
        if source.dim() == 4 and not tag.constant:
            map_dims = [*dims[2], *dims[3]]
            whole = math.prod(source.shape[2:]) == made.shape[2]
            window = [
                piece
                for count, pieces in zip(size, dims[2:])
                for piece in axis(count, "gathered", _last(pieces))
            ]
            places = tuple(map_dims) if whole else axis(made.shape[2], "gathered", _last(dims[3]))
            tag.factors = laid_out([dims[0], (*dims[1], *window), places], made)
            tag.moved = self._movement(source, made, again)
        self.put(made, tag)

    def _indexed_factors(
        self, source: Tensor, indices: Sequence[Tensor | None], made: Tensor
    ) -> tuple[Factor, ...] | None:
        at = [dim for dim, index in enumerate(indices) if index is not None]
        tensors = [index for index in indices if index is not None]
        if not at or any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
            return self.resized(source, made)
        known = self.dims(source)
        chosen = merged([self.dims(index) for index in tensors], firm=False)
        sizes = torch.broadcast_shapes(*(index.shape for index in tensors))
        chosen = [
            pieces or axis(size, "expanded")
            for pieces, size in zip([()] * (len(sizes) - len(chosen)) + chosen, sizes)
        ]
        if chosen and chosen[-1]:  # the last axis of the indices runs over what is chosen
            *outer, (size, _) = chosen[-1]
            chosen[-1] = (*outer, *axis(size, "gathered", _last(known[at[-1]])))
        rest = [pieces for dim, pieces in enumerate(known) if dim not in at]
        together = at == list(range(at[0], at[0] + len(at)))
        start = at[0] if together else 0
        dims = [*rest[:start], *chosen, *rest[start:]]
        return laid_out(dims, made) if len(dims) == made.dim() else None

    def repeated(self, source: Tensor, made: Tensor) -> None:
        """Copies beside each other."""
        tag = self._moved_tag(source)
        dims = self.dims(source)
        dims = [()] * (made.dim() - len(dims)) + dims
        sizes = [1] * (made.dim() - source.dim()) + list(source.shape)
        result: Dims = []
        for pieces, before, after in zip(dims, sizes, made.shape):
            count = after // max(1, before)
            result.append((*axis(count, "expanded"), *pieces))
        tag.factors = laid_out(result, made)
        self.put(made, tag)

    def _moved_tag(self, source: Tensor) -> Tag:
        before = self.tag(source)
        tag = Tag()
        if before is not None:
            if before.mark is not None:  # chosen, rolled or padded weights are weights yet
                tag.mark = before.mark._replace(before=None)
            tag.sources, tag.constant = before.sources, before.constant
            tag.normaliser, tag.sides, tag.widths = before.normaliser, before.sides, before.widths
            tag.entries = before.entries
            if before.total is not None:
                tag.total = before.total._replace(exact=False)
        tag.same_as = self.token(source)
        return tag

    def is_moved(self, tensor: Tensor) -> bool:
        """Whether entries were gathered or taken from windows."""
        tag = self.tag(tensor)
        return tag is not None and tag.moved is not None

    def is_zero(self, tensor: Tensor) -> bool:
        """Whether a tensor was made as zeros."""
        tag = self.tag(tensor)
        return tag is not None and tag.zero

    def is_weights(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.mark is not None

    def viewed(self, source: Tensor) -> None:
        """A view is about to hide the shape of a tensor that nothing is known about."""
        tag = self.tag(source)
        if tag is None or tag.factors is None:
            self.dims(source)

    def resized(self, source: Tensor, made: Tensor) -> tuple[Factor, ...] | None:
        """Factors where dimensions stay in their order: of another size, entries were chosen."""
        if source.dim() != made.dim():
            return None
        if source.shape == made.shape:
            return self._spread_out((source,), made)
        dims: Dims = []
        for pieces, size, before in zip(self.dims(source), made.shape, source.shape):
            if size != before and size > 1:
                feature = bool(pieces) and pieces[-1][1].kind == "feature"
                pieces = axis(size, "feature" if feature else "gathered", _last(pieces))
            dims.append(pieces if size > 1 else ())
        return laid_out(dims, made)

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
        if mine is not None:
            tag.factors, tag.sides, tag.widths = mine.factors, mine.sides, mine.widths
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
        self.pointwise((given,), made, kind="partial")

    def concatenated(self, inputs: Sequence[Tensor], dim: int, made: Tensor) -> None:
        """Joined along an axis: of several maps of one input that axis comes from parameters."""
        inputs = [tensor for tensor in inputs if tensor.numel()]
        tags = [self.tag(tensor) for tensor in inputs]
        tag = Tag()
        marks = [known.mark for known in tags if known is not None and known.mark is not None]
        if marks:  # weights put together, of several heads or rows
            tag.mark = marks[0]._replace(
                before=None, others=tuple(mark.candidate for mark in marks[1:])
            )
        for known in tags:
            if known is not None:
                tag.late = _once(tag.late, known.late)
                tag.normaliser = tag.normaliser or known.normaliser
                if known.total is not None:
                    tag.total = _added(tag.total, known.total, alone=False)
        if tags and all(known is not None and known.constant for known in tags):
            tag.constant = True
        sources, same = NOBODY, len(tags) > 1
        for known in tags:
            mine = NOBODY if known is None else known.sources
            same = same and bool(mine) and known is not None and known.sides is None
            same = same and (not sources or mine == sources)
            same = same and known is not None and known.entries == tags[0].entries  # type: ignore[union-attr]
            sources = joined(sources, mine)
        tag.sources = sources
        if inputs and made.dim() and not tag.constant:
            tag.factors = self._joined_factors(inputs, dim % made.dim(), made, same)
            tag.moved = self._joined_movement(inputs, dim, made)
        scores = [known for known in tags if known is not None and known.sides is not None]
        if scores:
            tag.sides, tag.widths = scores[0].sides, scores[0].widths
        self.put(made, tag)

    def _joined_factors(
        self, inputs: Sequence[Tensor], dim: int, made: Tensor, feature: bool
    ) -> tuple[Factor, ...]:
        """Several maps of one input beside each other are features; so are its slices' heads."""
        first = inputs[0]
        stacked = first.dim() < made.dim()
        known = sorted(inputs, key=self.constant)[0]
        dims = self.dims(known)
        if stacked:
            dims.insert(dim, ())
            count = len(inputs)
            kind: Any = "feature" if feature or self._cut_apart(inputs) else "data"
            dims[dim] = axis(count, kind)
        elif self._cut_apart(inputs) and known.shape[dim] * len(inputs) == made.shape[dim]:
            dims[dim] = ((len(inputs), self._cut_apart(inputs)), *dims[dim])  # type: ignore[arg-type]
        elif made.shape[dim] > 1:
            pieces = [piece for tensor in inputs for piece in self.dims(tensor)[dim]]
            roots = {origin.ancestor for _, origin in pieces}
            all_features = bool(pieces) and all(origin.kind == "feature" for _, origin in pieces)
            chosen = any(origin.gathered for _, origin in pieces)
            kind = "feature" if feature or all_features else "gathered" if chosen else "data"
            base = pieces[0][1] if len(roots) == 1 else None
            dims[dim] = axis(made.shape[dim], kind, base)
        return laid_out(dims, made)

    def _joined_movement(self, inputs: Sequence[Tensor], dim: int, made: Tensor) -> Movement | None:
        """Slices of one tensor beside each other, as windows that look at their neighbours."""
        if len(inputs) < 2 or inputs[0].dim() != made.dim() or made.dim() < 3:
            return None
        views = [None if self.constant(tensor) else self.view(tensor) for tensor in inputs]
        known = [view for view in views if view is not None]
        if not known or self.dims_are_features(inputs[0], dim):
            return None
        shapes = [tuple(tensor.shape) for tensor in inputs]

        def again(*numbers: Tensor) -> Tensor:
            rest = iter(numbers)
            parts = [
                torch.full(shape, -1, device=numbers[0].device) if view is None else next(rest)
                for view, shape in zip(views, shapes)
            ]
            return torch.cat(parts, dim)

        return Movement.into(made, known, again)

    def dims_are_features(self, tensor: Tensor, dim: int) -> bool:
        """Whether a dimension comes from parameters alone."""
        pieces = self.dims(tensor)[dim]
        return bool(pieces) and all(origin.kind == "feature" for _, origin in pieces)

    def _cut_apart(self, inputs: Sequence[Tensor]) -> Origin | None:
        """The feature axis that these are slices of, one behind the other: heads."""
        if len(inputs) < 2 or len({tensor.shape for tensor in inputs}) > 1:
            return None
        first, second = inputs[0], inputs[1]
        if len({_address(tensor) for tensor in inputs}) > 1 or not first.numel():
            return None
        tag = self.tag(first)
        step = (int(second.storage_offset()) - int(first.storage_offset())) * first.element_size()
        for factor in tag.factors if tag is not None and tag.factors else ():
            if factor.stride <= step < factor.stride * factor.size:
                return factor.origin
        return None

    def lose(self, candidate: Candidate) -> None:
        """A candidate went where it is not followed."""

    def linear(self, given: Tensor, made: Tensor, features: int = -1) -> None:
        """A linear map whose weight is out of sight: quantised, or a convolution.

        `features` is the dimension that comes from the weight.
        """
        tag = Tag()
        tag.sources, tag.entries = self._behind(given, self.tag(given)), entries_of(given)
        if made.dim() and made.layout == torch.strided and given.dim() == made.dim():
            dims = self.dims(given)
            for index, size in enumerate(made.shape):
                if size != given.shape[index]:
                    dims[index] = axis(size, "gathered", _last(dims[index]))
            dims[features] = axis(made.shape[features], "feature")
            tag.factors = laid_out(dims, made)
            before = self.tag(given)
            if before is not None and before.moved is not None:
                tag.moved = self._mapped(given, made, features)
            if before is not None and before.mark is not None and given.shape == made.shape:
                tag.mark = Mark(before.mark.candidate, kind="signed")  # heads mixed
        self.put(made, tag)

    def _mapped(self, given: Tensor, made: Tensor, features: int) -> Movement | None:
        """A linear map of entries that were moved: its features all come from the same place."""
        shape = made.shape
        same = all(
            one == other
            for dim, (one, other) in enumerate(zip(given.shape, shape))
            if dim != features % made.dim()
        )
        if not same:
            return None
        spread = expanded(shape)
        return self._movement(given, made, lambda numbers: spread(numbers.narrow(features, 0, 1)))

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
        blended.sources = sources
        blended.noise = any(tag is not None and tag.noise for _, tag in known) and all(
            tag is not None and (tag.noise or tag.constant) for _, tag in known
        )
        if constant:
            blended.constant = True
            blended.widths = next((tag.widths for _, tag in known if tag and tag.widths), ())
            if any(tag is not None and tag.factors is not None for _, tag in known):
                blended.factors = self._spread_out(inputs, made)
            return blended
        operator = self.operator.removesuffix("_")
        for tensor, tag in known:
            if tag is None:
                continue
            if tag.sides is not None and blended.sides is None:
                blended.sides = tag.sides
            if tag.widths and not blended.widths:
                blended.widths = tag.widths
            if tag.pairing is not None and blended.pairing is None:
                blended.pairing = tag.pairing
                steps = tag.pairing.steps
                if operator not in _LINEAR and operator not in steps:
                    blended.pairing = tag.pairing._replace(steps=(*steps, operator))
            if tag.exp:
                blended.exp = blended.number
            if tag.total is not None and operator in _LINEAR_OF_SUMS:
                blended.total = _added(
                    blended.total, tag.total, len(known) == 1 and operator in _COPIES
                )
                if operator == "reciprocal":
                    blended.total = blended.total._replace(inverse=not tag.total.inverse)
            if operator in _LINEAR_OF_SUMS:
                blended.late = _once(blended.late, tag.late)
            if tag.entries is not None and blended.entries is None:
                blended.entries = tag.entries
            blended.normaliser = blended.normaliser or tag.normaliser
            if tag.scores is not None:
                blended.scores = tag.scores
            if tag.mark is not None:
                blended.mark = _carried(tag.mark, tensor, made)
            if tag.log is not None:
                blended.log = _carried(tag.log, tensor, made)
        blended.factors = self._spread_out(inputs, made)
        blended.of_weights = all(
            tag is not None and (tag.constant or tag.of_weights or tag.mark is not None)
            for _, tag in known
        )
        for tensor, tag in known:
            if tag is not None and tag.moved is not None and not tag.constant:
                blended.moved = self._movement(tensor, made, expanded(made.shape))
                break
        if blended.late or blended.total is not None:
            blended.exp = 0
        if len(known) == 1 and known[0][1] is not None and operator in _COPIES:
            blended.weight_sum = known[0][1].weight_sum
        return blended

    def _movement(self, source: Tensor, made: Tensor, again: Again) -> Movement | None:
        """What an operator did to the entries of a tensor, to be done to numbers if need be."""
        if self.tag(source) is None or made.layout != torch.strided:
            return None
        return Movement.into(made, [self.view(source)], again)

    def _spread_out(self, inputs: Sequence[Tensor], made: Tensor) -> tuple[Factor, ...] | None:
        """Factors of what an operator that works place by place made of its inputs."""
        if made.layout != torch.strided:
            return None
        tags = [(tensor, self.tag(tensor)) for tensor in inputs if tensor.dim()]
        moving = [pair for pair in tags if pair[1] is None or not pair[1].constant] or tags
        if not moving:
            return None
        if len(moving) == 1:
            tensor, tag = moving[0]
            if tag is not None and tag.factors is not None and _alike(tensor, made):
                return tag.factors
        # weights before scores, scores before the rest: theirs are the axes that count
        moving.sort(key=lambda pair: -_rank(pair[1]))
        firm = _rank(moving[0][1]) > 0
        dims = merged([self.dims(tensor) for tensor, _ in moving], firm)
        if len(dims) > made.dim():
            return None
        dims = [()] * (made.dim() - len(dims)) + dims
        for index, pieces in enumerate(dims):
            if not pieces and made.shape[index] > 1:  # stretched by a constant
                dims[index] = self._constant_dim(tags, index - made.dim(), made.shape[index])
        return laid_out(dims, made)

    def _constant_dim(self, tags: Sequence[Any], index: int, size: int) -> Any:
        for tensor, _ in tags:
            if tensor.dim() >= -index and tensor.shape[index] == size:
                pieces = self.dims(tensor)[index]
                if pieces:
                    return pieces
        return axis(size, "expanded")


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, or those inside a wrapper: of quantised and of sharded parameters."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):
                yield from plain_tensors(inner)
    else:
        yield tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor inside a wrapper that holds one, as a shard does; else the tensor itself."""
    inside = list(plain_tensors(tensor))
    return inside[0] if len(inside) == 1 else tensor


def _once(one: tuple[Late, ...], other: tuple[Late, ...]) -> tuple[Late, ...]:
    """Both together, nothing twice."""
    return (*one, *(late for late in other if not any(late is each for each in one)))


def _added(one: Total | None, other: Total, alone: bool) -> Total:
    """A sum of sums of exponentials."""
    if one is None:
        return other._replace(exact=other.exact and alone)
    shifted = one.shifted or other.shifted
    return one._replace(numbers=one.numbers | other.numbers, exact=False, shifted=shifted)


def _last(pieces: Sequence[Any]) -> Origin | None:
    return pieces[-1][1] if pieces else None


def entries_of(tensor: Tensor) -> tuple[Any, ...]:
    """Which entries of its storage a tensor shows."""
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _identity(index: Tensor) -> tuple[int, int]:
    return int(index.untyped_storage()._cdata), int(index.storage_offset())


def same_index(one: Tensor, other: Tensor | None) -> bool:
    """Whether two lists of edges have the same queries."""
    return other is not None and one.shape == other.shape and bool(torch.equal(one, other))


def along_dim(index: Tensor, dim: int) -> Tensor:
    """An index that is the same for all heads and features, of one dimension."""
    if index.dim() == 1:
        return index
    return index.movedim(dim, 0).flatten(1)[:, 0] if index.numel() else index.flatten()


def _alike(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape and one.stride() == other.stride()
    return same and one.element_size() == other.element_size()


def _rank(tag: Tag | None) -> int:
    if tag is None:
        return 0
    return 2 if tag.mark is not None or tag.log is not None else int(tag.sides is not None)


def _carried(mark: Mark, source: Tensor, made: Tensor) -> Mark:
    """Weights in what an operator that works place by place made of them."""
    return mark._replace(before=None) if stretched(source, made) else mark
