"""Where the axes of a tensor come from.

A storage is a product of *factors*: axes with a size, a stride (in bytes, so that complex and real
views agree) and an `Origin`. Views share the factors of their storage; a dimension of a view is one
factor, several merged ones, or part of one. That tells a batch axis from a head axis that was cut
out of the features, in whatever order they are folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

OriginKind = Literal["data", "feature", "parameter", "gathered", "expanded", "unknown"]


class Origin:
    """Where an axis comes from; origins that turn out to be one axis are joined."""

    __slots__ = ("_parts", "_same", "base", "dim", "kind", "size", "span", "taken")

    def __init__(
        self,
        kind: OriginKind,
        size: int,
        base: Origin | None = None,
        dim: tuple[int, int] | None = None,
    ) -> None:
        self.kind = kind
        self.size = size
        self.base = base  # the axis this one was taken from
        self.dim = dim  # of an input: which dimension of how many
        self.span: Sequence[int] | None = None  # of slices: which positions of its base
        self.taken: Any = None  # of gathered entries: the dimension, and the index (in a box)
        self._same: Origin | None = None
        self._parts: dict[range, Origin] | None = None

    @property
    def root(self) -> Origin:
        """The representative of all origins joined with this one."""
        origin = self
        while origin._same is not None:
            origin = origin._same
        return origin

    @property
    def ancestor(self) -> Origin:
        """The axis this one was first taken from."""
        origin = self.root
        while origin.base is not None:
            origin = origin.base.root
        return origin

    @property
    def gathered(self) -> bool:
        """Whether entries of a longer axis were gathered on the way."""
        origin = self.root
        while origin.kind != "gathered" and origin.base is not None:
            origin = origin.base.root
        return origin.kind == "gathered"

    def part(self, span: range) -> Origin:
        """A slice of this axis; the same object for the same span."""
        self._parts = {} if self._parts is None else self._parts
        if span not in self._parts:
            self._parts[span] = part = Origin(self.kind, len(span), self)
            part.span = span
        return self._parts[span]

    @property
    def extent(self) -> Sequence[int] | None:
        """The positions of its ancestor that this axis covers; None unless it was only sliced."""
        origin = self.root
        spans: list[Sequence[int]] = []
        while origin.base is not None:
            before = origin.base.root
            if origin.span is not None:
                spans.append(origin.span)
            elif origin.size != before.size or origin.kind == "gathered":
                return None
            origin = before
        extent: Sequence[int] = range(origin.size)
        for span in reversed(spans):
            extent = [extent[position] for position in span]
        return extent

    def join(self, other: Origin) -> None:
        """Note that both are one axis."""
        if self.ancestor is other.ancestor:
            return
        mine, theirs = self.root, other.root
        if mine.kind == theirs.kind:
            if theirs.base is None:
                theirs._same = mine
            elif mine.base is None:
                mine._same = theirs


class Factor(NamedTuple):
    """An axis of a storage."""

    size: int
    stride: int  # in bytes
    origin: Origin


Piece = tuple[int, Origin]  # a factor, or part of one, in a dimension
Dims = list[tuple[Piece, ...]]  # of each dimension, outermost first


def axis(
    size: int, kind: OriginKind, base: Origin | None = None, dim: tuple[int, int] | None = None
) -> tuple[Piece, ...]:
    """A dimension that is a new axis; () for size one."""
    return ((size, Origin(kind, size, base, dim)),) if size > 1 else ()


def fresh_dims(tensor: Tensor, kind: OriginKind) -> Dims:
    """Dimensions of an unknown tensor: each a new axis."""
    count = tensor.dim()
    return [
        axis(size, kind, dim=(index, count)) if size > 1 and stride else ()
        for index, (size, stride) in enumerate(zip(tensor.shape, tensor.stride()))
    ]


def laid_out(dims: Dims, tensor: Tensor) -> tuple[Factor, ...]:
    """The factors of a tensor's storage, from the axes of its dimensions."""
    item = tensor.element_size()
    factors = []
    for pieces, stride in zip(dims, tensor.stride()):
        step = stride * item
        for size, origin in reversed(pieces):
            factors.append(Factor(size, step, origin))
            step *= size
    return tuple(factors)


def dims_of(tensor: Tensor, factors: Sequence[Factor]) -> Dims:
    """The axes in each dimension of a view; () for size one and expanded dimensions."""
    item = tensor.element_size()
    shape, strides = tensor.shape, tensor.stride()
    dims = [
        _pieces(size, stride * item, factors) if size > 1 and stride else ()
        for size, stride in zip(shape, strides)
    ]
    for later in range(1, len(dims)):  # windows that overlap: the same axis twice
        for earlier in range(later):
            if _overlap(dims, shape, strides, earlier, later):
                dims[later] = axis(shape[later], "gathered", dims[later][0][1])
                break
    return dims


def with_slices(tensor: Tensor, dims: Dims, factors: Sequence[Factor]) -> Dims:
    """Dimensions of a view, with slices of data axes as axes of their own."""
    item = tensor.element_size()
    offset = int(tensor.storage_offset()) * item
    origins = [origin for pieces in dims for _, origin in pieces]
    result: Dims = []
    for pieces, stride in zip(dims, tensor.stride()):
        inner: list[Piece] = []
        for size, origin in reversed(pieces):
            if origin.kind in ("data", "gathered") and origins.count(origin) == 1:
                factor = next((each for each in factors if each.origin is origin), None)
                if factor is not None:
                    origin = _slice(origin, factor, offset, size, stride * item)
            inner.insert(0, (size, origin))
            stride *= size
        result.append(tuple(inner))
    return result


def _slice(origin: Origin, factor: Factor, offset: int, size: int, step: int) -> Origin:
    """The slice of an axis that begins at an offset; the axis itself if it is shown whole."""
    if not size < factor.size == origin.size:
        return origin
    start, step = offset // factor.stride % factor.size, step // factor.stride
    span = range(start, start + step * (size - 1) + 1, step)
    return origin.part(span) if span[-1] < factor.size else origin


def apart(queries: Sequence[Origin], keys: Sequence[Origin]) -> bool:
    """Whether two axes are disjoint slices of one."""
    extents = _extents(queries, keys)
    return extents is not None and set(extents[0]).isdisjoint(extents[1])


def other_positions(left: tuple[Piece, ...], right: tuple[Piece, ...]) -> bool:
    """Whether two dimensions pair each position of an axis with another one."""
    for (_, mine), (_, theirs) in zip(left, right):
        extents = None if mine is theirs else _extents([mine], [theirs])
        if extents is not None and all(i != j for i, j in zip(*extents)):
            return True
    return False


def _extents(
    left: Sequence[Origin], right: Sequence[Origin]
) -> tuple[Sequence[int], Sequence[int]] | None:
    """The positions that two axes have of the one both were cut out of."""
    if len(left) != 1 or len(right) != 1 or left[0].ancestor is not right[0].ancestor:
        return None
    mine, theirs = left[0].extent, right[0].extent
    return None if mine is None or theirs is None else (mine, theirs)


def _overlap(
    dims: Dims, shape: Sequence[int], strides: Sequence[int], earlier: int, later: int
) -> bool:
    first, second = dims[earlier], dims[later]
    if len(first) != 1 or len(second) != 1 or first[0][1] is not second[0][1]:
        return False
    near, far = sorted((earlier, later), key=lambda dim: strides[dim])
    return bool(strides[far] < strides[near] * shape[near])


def _pieces(size: int, step: int, factors: Sequence[Factor]) -> tuple[Piece, ...]:
    """The factors that a dimension of this size and stride covers, outermost first."""
    inner: list[Piece] = []
    left = size
    for factor in sorted(factors, key=lambda factor: factor.stride):
        reach = factor.stride * factor.size
        if reach <= step:
            continue
        if factor.stride > step or step % factor.stride:
            break
        room = -(-reach // step)  # steps until this factor ends
        if left <= room:
            return ((left, factor.origin), *inner)
        if reach % step or left % room:
            break
        inner.insert(0, (room, factor.origin))
        left, step = left // room, reach
    return axis(size, "unknown")


def merged(dims: Sequence[Dims], firm: bool) -> Dims:
    """Dimensions of a broadcast result: those of the first tensor that has them.

    Equal ones are joined. Where one is a feature and another data, `firm` keeps the first.
    """
    count = max(len(each) for each in dims)
    result: Dims = [()] * count
    for each in dims:
        shift = count - len(each)
        for index, pieces in enumerate(each):
            if not pieces:
                continue
            before = result[index + shift]
            if not before:
                result[index + shift] = pieces
            elif before is not pieces:
                result[index + shift] = _agreed(before, pieces, firm)
    return result


def _agreed(left: tuple[Piece, ...], right: tuple[Piece, ...], firm: bool) -> tuple[Piece, ...]:
    if [size for size, _ in left] != [size for size, _ in right]:
        if firm or any(origin.kind in ("expanded", "unknown") for _, origin in right):
            return left
        stretched = any(origin.kind in ("expanded", "unknown") for _, origin in left)
        return right if stretched or len(right) > len(left) else left
    agreed = []
    for (size, mine), (_, theirs) in zip(left, right):
        slices = mine.root.span is not None or theirs.root.span is not None
        if not slices and mine.root.size == theirs.root.size:  # a slice of a table is another axis
            mine.join(theirs)
        prefer = not firm and theirs.kind == "feature" and mine.kind != "feature"
        prefer = prefer or (mine.kind == "unknown" and theirs.kind != "unknown")
        agreed.append((size, theirs if prefer else mine))
    return tuple(agreed)
