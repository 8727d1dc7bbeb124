"""Tags through operators that move entries or make axes: copies, gathers, linear maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import (
    Dims,
    Factor,
    Origin,
    Piece,
    axis,
    dims_of,
    laid_out,
    merged,
)
from regard.tracing.dataflow.entry_maps import Again, Movement, along_dim, expanded, same_index
from regard.tracing.dataflow.pointwise import Pointwise
from regard.tracing.dataflow.tags import (
    NOBODY,
    Mark,
    Sources,
    Tag,
    TagStore,
    covers,
    joined,
    joined_late,
    joined_totals,
    storage_address,
)


class Moves:
    """Operators that move entries, or make new axes."""

    def __init__(self, tags: TagStore, pointwise: Pointwise) -> None:
        self.tags, self.pointwise = tags, pointwise

    def copied(self, source: Tensor, output: Tensor) -> None:
        """A copy, maybe in another layout."""
        tag = self.pointwise.blend((source,), output)
        tag.same_as = self.tags.token(source)  # a linear map of the copy is one of the source
        if tag.moved is None and self._overlaps(source):
            tag.moved = self.pointwise.movement(source, output, lambda numbers: numbers)
        self.tags.put(output, tag)

    def _overlaps(self, source: Tensor) -> bool:
        """Whether a view repeats entries of its storage, as sliding windows do."""
        tag = self.tags.tag(source)
        if tag is None or tag.factors is None or source.dim() < 2:
            return False
        own = {factor.origin for factor in tag.factors}
        return any(
            origin.kind == "gathered" and origin not in own
            for pieces in dims_of(source, tag.factors)
            for _, origin in pieces
        )

    def selected(self, source: Tensor, output: Tensor) -> None:
        """Some entries along an axis, as of top-k; those of a parameter's axis are one still."""
        tag = self._moved_tag(source)
        tag.factors = self.resized(source, output)
        self.tags.put(output, tag)

    def unknown(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """An operator without a rule. Constants make a constant; otherwise inputs with as many
        dimensions as the output are taken to have its axes."""
        constant = bool(inputs) and all(self.tags.constant(tensor) for tensor in inputs)
        first = next((tensor for tensor in inputs if not self.tags.constant(tensor)), None)
        sources = NOBODY if first is None else self.tags.sources(first)
        for tensor in outputs:
            if tensor.layout != torch.strided:
                continue
            if constant and not covers(tensor):
                self.pointwise.fixed(tensor)
                continue
            tag = Tag()
            tag.sources, tag.constant = sources, constant
            alike = [each for each in inputs if each.dim() == tensor.dim() > 0]
            if alike:
                alike.sort(key=lambda each: (self.tags.constant(each), each.shape != tensor.shape))
                tag.factors = self.resized(alike[0], tensor)
            self.tags.put(tensor, tag)

    def attended(self, query: Tensor, value: Tensor, output: Tensor) -> None:
        """An operator that attends: positions of the queries, features of the values."""
        tag = Tag()
        if query.dim() == value.dim() == output.dim() and not query.is_nested:
            tag.factors = laid_out([*self.tags.dims(query)[:-1], self.tags.dims(value)[-1]], output)
        self.tags.put(output, tag)

    def moved(self, source: Tensor, output: Tensor, again: Again | None = None) -> None:
        """Entries rearranged; `again` does the same to numbers."""
        tag = self._moved_tag(source)
        tag.factors = self.resized(source, output)
        if again is not None and not tag.constant:
            tag.moved = self.pointwise.movement(source, output, again)
        if tag.sources or tag.constant or tag.factors is not None:
            self.tags.put(output, tag)

    def embedded(self, table: Tensor, ids: Tensor, output: Tensor) -> None:
        """Rows of a table, one for each id; constant if the ids are."""
        tag = Tag()
        tag.constant = self.tags.constant(table) and self.tags.constant(ids)
        tag.factors = laid_out([*self.tags.dims(ids), axis(output.shape[-1], "feature")], output)
        self.tags.put(output, tag)

    def _meet_edges(self, source: Tensor, dim: int, index: Tensor, tag: Tag) -> None:
        """Nodes gathered for the edges that point to them: sums of exponentials, or queries."""
        before = self.tags.tag(source)
        total = None if before is None else before.total
        if total is not None and total.segments is not None:
            if total.dim == dim and same_index(total.segments, along_dim(index, dim)):
                tag.total = total._replace(at_edges=True)
        elif index.dim() == 1 and not tag.constant:
            origin = _last(self.tags.dims(source)[dim])
            if origin is not None:
                self.tags.chosen_from(index).add(origin)

    def gathered(
        self,
        source: Tensor,
        dim: int,
        index: Tensor,
        output: Tensor,
        choose: Callable[[Tensor, int, Any], Tensor],
    ) -> None:
        """Entries chosen along one dimension; `choose` does the same to numbers."""
        tag = self._moved_tag(source)
        tag.constant = tag.constant and self.tags.constant(index)
        dim %= max(1, source.dim())
        self._meet_edges(source, dim, index, tag)
        if output.dim() and source.dim() == output.dim():
            dims = self.tags.dims(source)
            for other, size in enumerate(output.shape):
                if other == dim or size != source.shape[other]:
                    dims[other] = axis(size, "gathered", _last(dims[other]))
            tag.factors = laid_out(dims, output)
        if not tag.constant:
            box = self.tags.box(index)
            tag.moved = self.pointwise.movement(
                source, output, lambda numbers: choose(numbers, dim, box.tensor)
            )
        self.tags.put(output, tag)

    def indexed(self, source: Tensor, indices: Sequence[Tensor | None], output: Tensor) -> None:
        """Advanced indexing: the dimensions of the indices replace those indexed."""
        tag = self._moved_tag(source)
        tag.factors = self._indexed_factors(source, indices, output)
        tag.constant = tag.constant and all(
            self.tags.constant(index) for index in indices if index is not None
        )
        indexed_dims = [dim for dim, index in enumerate(indices) if index is not None]
        if len(indexed_dims) == 1:
            self._meet_edges(source, indexed_dims[0], indices[indexed_dims[0]], tag)  # type: ignore[arg-type]
        if not tag.constant:
            boxes = [None if index is None else self.tags.box(index) for index in indices]
            if len(indexed_dims) == 1 and tag.factors is not None and source.dim() == output.dim():
                pieces = dims_of(output, tag.factors)[indexed_dims[0]]
                if len(pieces) == 1 and pieces[0][1].kind == "gathered":
                    pieces[0][1].taken = (
                        self.tags.dims(source)[indexed_dims[0]],
                        boxes[indexed_dims[0]],
                    )

            def again(numbers: Tensor) -> Tensor:
                tensors = [None if box is None else box.tensor for box in boxes]
                chosen: Tensor = torch.ops.aten.index.Tensor(numbers, tensors)
                return chosen

            tag.moved = self.pointwise.movement(source, output, again)
        self.tags.put(output, tag)

    def windows(self, source: Tensor, output: Tensor, size: Sequence[int], again: Again) -> None:
        """Patches (batch, channel × window, position) of (batch, channel, height, width)."""
        tag = self._moved_tag(source)
        dims = self.tags.dims(source)
        if source.dim() == 4 and not tag.constant:
            everywhere = math.prod(source.shape[2:]) == output.shape[2]
            window = [
                piece
                for count, pieces in zip(size, dims[2:])
                for piece in axis(count, "gathered", _last(pieces))
            ]
            positions = axis(output.shape[2], "gathered", _last(dims[3]))
            positions = (*dims[2], *dims[3]) if everywhere else positions
            tag.factors = laid_out([dims[0], (*dims[1], *window), positions], output)
            tag.moved = self.pointwise.movement(source, output, again)
        self.tags.put(output, tag)

    def _indexed_factors(
        self, source: Tensor, indices: Sequence[Tensor | None], output: Tensor
    ) -> tuple[Factor, ...] | None:
        indexed_dims = [dim for dim, index in enumerate(indices) if index is not None]
        tensors = [index for index in indices if index is not None]
        if not indexed_dims or any(index.dtype in (torch.bool, torch.uint8) for index in tensors):
            return self.resized(source, output)
        source_dims = self.tags.dims(source)
        chosen = merged([self.tags.dims(index) for index in tensors], firm=False)
        sizes = torch.broadcast_shapes(*(index.shape for index in tensors))
        chosen = [
            pieces or axis(size, "expanded")
            for pieces, size in zip([()] * (len(sizes) - len(chosen)) + chosen, sizes)
        ]
        if chosen and chosen[-1]:  # the last axis of the indices runs over what is chosen
            *outer, (size, _) = chosen[-1]
            chosen[-1] = (*outer, *axis(size, "gathered", _last(source_dims[indexed_dims[-1]])))
        rest = [pieces for dim, pieces in enumerate(source_dims) if dim not in indexed_dims]
        together = indexed_dims == list(range(indexed_dims[0], indexed_dims[0] + len(indexed_dims)))
        start = indexed_dims[0] if together else 0
        dims = [*rest[:start], *chosen, *rest[start:]]
        return laid_out(dims, output) if len(dims) == output.dim() else None

    def repeated(self, source: Tensor, output: Tensor) -> None:
        """Copies beside each other."""
        tag = self._moved_tag(source)
        dims = self.tags.dims(source)
        dims = [()] * (output.dim() - len(dims)) + dims
        sizes = [1] * (output.dim() - source.dim()) + list(source.shape)
        result: Dims = []
        for pieces, before, after in zip(dims, sizes, output.shape):
            count = after // max(1, before)
            result.append((*axis(count, "expanded"), *pieces))
        tag.factors = laid_out(result, output)
        self.tags.put(output, tag)

    def _moved_tag(self, source: Tensor) -> Tag:
        before = self.tags.tag(source)
        tag = Tag()
        if before is not None:
            if before.mark is not None:  # chosen, rolled or padded weights are weights
                tag.mark = before.mark._replace(before=None)
            tag.sources, tag.constant = before.sources, before.constant
            tag.normaliser, tag.sides, tag.widths = before.normaliser, before.sides, before.widths
            tag.entries = before.entries
            if before.total is not None:
                tag.total = before.total._replace(exact=False)
        tag.same_as = self.tags.token(source)
        return tag

    def viewed(self, source: Tensor) -> None:
        """Record the axes of an unknown tensor before a view hides its shape."""
        tag = self.tags.tag(source)
        if tag is None or tag.factors is None:
            self.tags.dims(source)

    def resized(self, source: Tensor, output: Tensor) -> tuple[Factor, ...] | None:
        """Factors if dimensions keep their order; where the size differs, entries were chosen."""
        if source.dim() != output.dim():
            return None
        if source.shape == output.shape:
            return self.pointwise.factors((source,), output)
        dims: Dims = []
        for pieces, size, before in zip(self.tags.dims(source), output.shape, source.shape):
            if size != before and size > 1:
                feature = bool(pieces) and pieces[-1][1].kind == "feature"
                pieces = axis(size, "feature" if feature else "gathered", _last(pieces))
            dims.append(pieces if size > 1 else ())
        return laid_out(dims, output)

    def concatenated(self, inputs: Sequence[Tensor], dim: int, output: Tensor) -> None:
        """Concatenation; of several maps of one input, its axis comes from parameters."""
        inputs = [tensor for tensor in inputs if tensor.numel()]
        tags = [self.tags.tag(tensor) for tensor in inputs]
        tag = Tag()
        marks = [each.mark for each in tags if each is not None and each.mark is not None]
        if marks:  # weights put together, of several heads or rows
            tag.mark = marks[0]._replace(
                before=None, others=tuple(mark.candidate for mark in marks[1:])
            )
        for each in tags:
            if each is not None:
                tag.late = joined_late(tag.late, each.late)
                tag.normaliser = tag.normaliser or each.normaliser
                if each.total is not None:
                    tag.total = joined_totals(tag.total, each.total, alone=False)
        if tags and all(each is not None and each.constant for each in tags):
            tag.constant = True
        sources, same = NOBODY, len(tags) > 1
        for each in tags:
            mine = NOBODY if each is None else each.sources
            same = same and bool(mine) and each is not None and each.sides is None
            same = same and (not sources or mine == sources)
            same = same and each is not None and each.entries == tags[0].entries  # type: ignore[union-attr]
            sources = joined(sources, mine)
        tag.sources = sources
        if inputs and output.dim() and not tag.constant:
            tag.factors = self._joined_factors(inputs, dim % output.dim(), output, same)
            if not _new_axis(dims_of(output, tag.factors)[dim % output.dim()]):
                tag.moved = self._joined_movement(inputs, dim, output)
        scores = [each for each in tags if each is not None and each.sides is not None]
        if scores:
            tag.sides, tag.widths = scores[0].sides, scores[0].widths
        elif len(inputs) > 1 and all(_expanded(tensor) for tensor in inputs[:2]):
            tag.sides = (
                self.tags.sources(inputs[0]),
                self.tags.sources(inputs[1]),
            )  # pairs of two inputs
        self.tags.put(output, tag)

    def _joined_factors(
        self, inputs: Sequence[Tensor], dim: int, output: Tensor, feature: bool
    ) -> tuple[Factor, ...]:
        """Several maps of one input are features; so are heads that were sliced off."""
        first = inputs[0]
        stacked = first.dim() < output.dim()
        reference = sorted(inputs, key=self.tags.constant)[0]
        dims = self.tags.sliced_dims(reference)
        cut = self._cut_apart(inputs)
        rejoined = not stacked and any(origin.base is cut for _, origin in dims[dim])
        if stacked:
            dims.insert(dim, ())
            count = len(inputs)
            kind: Any = "feature" if feature or cut else "data"
            dims[dim] = axis(count, kind)
        elif cut and reference.shape[dim] * len(inputs) == output.shape[dim] and not rejoined:
            dims[dim] = ((len(inputs), cut), *dims[dim])
        elif output.shape[dim] > 1:
            pieces = [piece for tensor in inputs for piece in self.tags.dims(tensor)[dim]]
            slices = [piece for tensor in inputs for piece in self.tags.sliced_dims(tensor)[dim]]
            roots = {origin.ancestor for _, origin in pieces}
            all_features = bool(pieces) and all(origin.kind == "feature" for _, origin in pieces)
            chosen = any(origin.gathered for _, origin in pieces)
            kind = "feature" if feature or all_features else "gathered" if chosen else "data"
            base = pieces[0][1] if len(roots) == 1 else None
            span = _side_by_side(slices, output.shape[dim])
            dims[dim] = axis(output.shape[dim], kind, base if span is None else roots.pop())
            dims[dim][0][1].span = span
        for other in inputs if not stacked else ():
            for index, theirs in enumerate(self.tags.sliced_dims(other)):
                if not dims[index] and index != dim:  # the first is stretched there
                    dims[index] = theirs
        return laid_out(dims, output)

    def _joined_movement(
        self, inputs: Sequence[Tensor], dim: int, output: Tensor
    ) -> Movement | None:
        """Slices of one tensor side by side, as windows with their neighbours."""
        if len(inputs) < 2 or inputs[0].dim() != output.dim() or output.dim() < 3:
            return None
        views = [
            None if self.tags.constant(tensor) else self.tags.view(tensor) for tensor in inputs
        ]
        sources = [view for view in views if view is not None]
        if not sources or self.dims_are_features(inputs[0], dim):
            return None
        shapes = [tuple(tensor.shape) for tensor in inputs]

        def again(*numbers: Tensor) -> Tensor:
            rest = iter(numbers)
            parts = [
                torch.full(shape, -1, device=numbers[0].device) if view is None else next(rest)
                for view, shape in zip(views, shapes)
            ]
            return torch.cat(parts, dim)

        return Movement.into(output, sources, again)

    def dims_are_features(self, tensor: Tensor, dim: int) -> bool:
        """Whether a dimension comes from parameters alone."""
        pieces = self.tags.dims(tensor)[dim]
        return bool(pieces) and all(origin.kind == "feature" for _, origin in pieces)

    def _cut_apart(self, inputs: Sequence[Tensor]) -> Origin | None:
        """The feature axis that these are consecutive slices of: heads."""
        if len(inputs) < 2 or len({tensor.shape for tensor in inputs}) > 1:
            return None
        first, second = inputs[0], inputs[1]
        if len({storage_address(tensor) for tensor in inputs}) > 1 or not first.numel():
            return None
        tag = self.tags.tag(first)
        step = (int(second.storage_offset()) - int(first.storage_offset())) * first.element_size()
        for factor in tag.factors if tag is not None and tag.factors else ():
            if factor.stride <= step < factor.stride * factor.size:
                return factor.origin
        return None

    def linear(self, source: Tensor, output: Tensor, features: int = -1) -> None:
        """A linear map, quantised or a convolution; `features` is its output dimension."""
        tag = Tag()
        tag.sources = self.behind(source, self.tags.tag(source))
        tag.entries = entries_of(source, features)
        if output.dim() and output.layout == torch.strided and source.dim() == output.dim():
            dims = self.tags.sliced_dims(source)
            for index, size in enumerate(output.shape):
                if size != source.shape[index]:
                    dims[index] = axis(size, "gathered", _last(dims[index]))
            dims[features] = axis(output.shape[features], "feature")
            tag.factors = laid_out(dims, output)
            before = self.tags.tag(source)
            if before is not None and before.moved is not None:
                tag.moved = self.mapped(source, output, features)
            if before is not None and before.mark is not None and source.shape == output.shape:
                tag.mark = Mark(before.mark.candidate, kind="signed")  # heads mixed
        self.tags.put(output, tag)

    def mapped(self, source: Tensor, output: Tensor, features: int) -> Movement | None:
        """A linear map of moved entries: all its features come from the same entry."""
        shape = output.shape
        same = all(
            before == after
            for dim, (before, after) in enumerate(zip(source.shape, shape))
            if dim != features % output.dim()
        )
        if not same:
            return None
        spread = expanded(shape)
        return self.pointwise.movement(
            source, output, lambda numbers: spread(numbers.narrow(features, 0, 1))
        )

    def behind(self, source: Tensor, tag: Tag | None) -> Sources:
        """The sources of a linear map: its input, and what that comes from."""
        if tag is None:
            return frozenset((self.tags.token(source),))
        return joined(frozenset((tag.same_as or tag.number,)), tag.sources)


def _new_axis(pieces: Sequence[Piece]) -> bool:
    """Whether a dimension is a new axis, as of two concatenated inputs."""
    return len(pieces) == 1 and pieces[0][1].kind == "data" and pieces[0][1].base is None


def _side_by_side(pieces: Sequence[Piece], size: int) -> list[int] | None:
    """The positions of concatenated slices of one axis; None if some are unknown."""
    if len({origin.ancestor for _, origin in pieces}) != 1:
        return None
    extents = [origin.extent for _, origin in pieces]
    positions = [position for extent in extents for position in extent or ()]
    return positions if None not in extents and len(positions) == size else None


def _expanded(tensor: Tensor) -> bool:
    """Whether a tensor is expanded along some dimension."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride()))


def _last(pieces: Sequence[Any]) -> Origin | None:
    return pieces[-1][1] if pieces else None


def entries_of(tensor: Tensor, features: int) -> tuple[Any, ...]:
    """Which entries of its storage a tensor shows, apart from its features."""
    offset, strides = int(tensor.storage_offset()), tensor.stride()
    step = strides[features]
    outer = min((stride for stride in strides if stride > step), default=0)
    if step and outer:  # the features of one entry lie between two steps of an outer dimension
        offset -= offset % outer // step * step
    return offset, tuple(tensor.shape), strides


def end_of(entries: tuple[Any, ...]) -> int:
    """The offset after the last of them."""
    offset, shape, stride = entries
    return int(offset + sum((size - 1) * step for size, step in zip(shape, stride)) + 1)
