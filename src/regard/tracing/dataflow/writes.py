"""Tags through operators that write into part of a storage: caches, tables filled in parts.

Rows that are written back where they were taken from, as by a map for each node type, keep their
axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import Factor, Piece, axis, dims_of, laid_out
from regard.tracing.dataflow.candidates import Candidates
from regard.tracing.dataflow.entry_maps import Movement, View
from regard.tracing.dataflow.tags import NOBODY, Tag, TagStore, covers, joined


class Writes:
    """Operators that overwrite some entries of a storage."""

    def __init__(self, tags: TagStore, candidates: Candidates) -> None:
        self.tags, self.candidates = tags, candidates

    def written(self, target: Tensor, source: Tensor) -> None:
        """Part of a storage was overwritten, as in a cache: the tags add up."""

        def again(flat: Tensor, numbers: Tensor) -> None:
            flat.as_strided(shape, stride, offset).copy_(numbers)

        shape, stride, offset = target.shape, target.stride(), int(target.storage_offset())
        self._write(target, source, self._put_back(target, source), again)

    def written_at(self, target: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
        """The same, at positions along one dimension."""
        box = self.tags.box(index)

        def again(flat: Tensor, numbers: Tensor) -> None:
            flat.view(shape)[(slice(None),) * dim + (box.tensor,)] = numbers

        shape = target.shape
        self._write(target, source, self._put_back_at(target, dim, index, source), again)

    def _write(
        self,
        target: Tensor,
        source: Tensor,
        factors: tuple[Factor, ...] | None,
        again: Callable[[Tensor, Tensor], None],
    ) -> None:
        """`factors` of the storage, if entries were written back where they came from."""
        mine, theirs = self.tags.tag(target), self.tags.tag(source)
        if theirs is not None and theirs.mark is not None:
            self.candidates.lose(theirs.mark.candidate)
        tag = Tag()
        tag.sources = joined(
            NOBODY if mine is None else mine.sources,
            frozenset((self.tags.token(source),)) if theirs is None else theirs.sources,
        )
        tag.constant = mine is not None and theirs is not None and mine.constant and theirs.constant
        tag.written = True
        if mine is not None:
            tag.factors, tag.sides, tag.widths = mine.factors, mine.sides, mine.widths
        if mine is not None and factors is not None and not tag.constant:
            tag.factors, tag.moved = factors, self._filled(target, source, mine, again)
        self.tags.put(target, tag)

    def _filled(
        self, target: Tensor, source: Tensor, before: Tag, again: Callable[[Tensor, Tensor], None]
    ) -> Movement:
        """The movement into a table that is being filled."""
        size = target.untyped_storage().nbytes() // target.element_size()
        earlier = [] if before.moved is None else [View(before.moved, (size,), (1,), 0)]

        def together(*numbers: Tensor) -> Tensor:
            *old, new = numbers
            flat = old[0].clone() if old else torch.full((size,), -1, device=new.device)
            again(flat, new)
            return flat

        return Movement((*earlier, self.tags.view(source)), together, (size,), (1,), 0, size)

    def _fillable(self, target: Tensor, source: Tensor) -> Tag | None:
        """The tag of a table that was created empty, or filled in order so far."""
        tag = self.tags.tag(target)
        if (
            tag is None
            or tag.parameter
            or self.tags.constant(source)
            or target.dim() != source.dim()
        ):
            return None
        return tag if tag.moved is not None or (tag.constant and not tag.written) else None

    def _put_back(self, target: Tensor, source: Tensor) -> tuple[Factor, ...] | None:
        """The axes of a storage into which slices are written where they were cut out."""
        tag = self._fillable(target, source)
        if tag is None or target.shape != source.shape or covers(target):
            return None
        dims = self.tags.dims(target)
        assert tag.factors is not None
        touched = {origin for pieces in dims for _, origin in pieces}
        factors = [factor for factor in tag.factors if factor.origin not in touched]
        item, offset = target.element_size(), int(target.storage_offset()) * target.element_size()
        for pieces, theirs, stride in zip(dims, self.tags.sliced_dims(source), target.stride()):
            origins = {origin for _, origin in pieces}
            axes = [factor for factor in tag.factors if factor.origin in origins]
            if len(pieces) != 1 or len(axes) != 1 or stride * item != axes[0].stride:
                return None
            size, start = axes[0].size, offset // stride // item % axes[0].size
            restored = theirs if pieces[0][0] == size else _cut_out(theirs, size, start)
            if restored is None:
                return None
            factors.extend(_steps(restored, axes[0].stride))
        return tuple(factors)

    def _put_back_at(
        self, target: Tensor, dim: int, index: Tensor, source: Tensor
    ) -> tuple[Factor, ...] | None:
        """The same for entries written where an index took them from."""
        tag = self._fillable(target, source)
        if tag is None or not covers(target) or not target.is_contiguous():
            return None
        dims = self.tags.sliced_dims(source)
        taken = dims[dim][0][1].taken if len(dims[dim]) == 1 else None
        if taken is None:
            return None
        pieces, box = taken
        if box.tensor is None or math.prod(size for size, _ in pieces) != target.shape[dim]:
            return None
        if box.tensor.shape != index.shape or not torch.equal(box.tensor, index):
            return None
        if tag.moved is not None and tag.factors is not None:
            return tag.factors if dims_of(target, tag.factors)[dim] == pieces else None
        dims[dim] = pieces
        return laid_out(dims, target)


def _cut_out(pieces: tuple[Piece, ...], size: int, start: int) -> tuple[Piece, ...] | None:
    """The axis that a slice was cut out of, if it begins at the same position there; several
    times as long, if there is a map for each."""
    if len(pieces) != 1:
        return None
    origin = pieces[0][1]
    span, whole = (
        (range(origin.size), origin) if origin.span is None else (origin.span, origin.base)
    )
    if whole is None or size % whole.size or span != range(start % whole.size, span[-1] + 1):
        return None
    return (*axis(size // whole.size, "feature"), (whole.size, whole))


def _steps(pieces: tuple[Piece, ...], step: int) -> list[Factor]:
    """The pieces of one dimension as factors."""
    factors = []
    for size, origin in reversed(pieces):
        factors.append(Factor(size, step, origin))
        step *= size
    return factors
