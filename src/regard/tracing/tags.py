"""What is known about the numbers in a storage, and how it moves from tensor to tensor.

A tag sits in the `__dict__` of a tensor's untyped storage, under a key of its capture: views share
it, it dies with the storage, and it is neither pickled nor copied. A tag never holds a tensor of
its own storage (nothing could collect that), only where axes lie in it, as sizes and strides.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from torch import Tensor

Axis = tuple[int, int]  # size and stride in the storage
Sources = frozenset[int]

_numbers = itertools.count(1)
NOBODY: Sources = frozenset()
_MOST_SOURCES = 8


class Box:
    """Holds the weights as they were before dropout; emptied when the capture ends."""

    __slots__ = ("__weakref__", "axes", "offset", "tensor")

    def __init__(self, tensor: Tensor, axes: tuple[Axis, ...], offset: int) -> None:
        self.tensor: Tensor | None = tensor
        self.axes, self.offset = axes, offset


class Candidate:
    """A softmax that may turn out to be attention."""

    __slots__ = ("done", "key", "kind", "place", "reason", "shape", "sides")

    def __init__(self, place: Any, key: int, shape: tuple[int, ...]) -> None:
        self.place = place  # where it was made; None when a filter left it out
        self.key = key  # which axis of its marks is the softmax axis
        self.shape = shape
        self.kind = "distribution"
        self.reason: str | None = None  # why it is not attention, where that is known
        self.sides: tuple[Sources, Sources] | None = None
        self.done = False


class Mark(NamedTuple):
    """Where the axes of a candidate lie in a storage; `before` is what dropout was given."""

    candidate: Candidate
    axes: tuple[Axis, ...]
    before: Box | None = None


class Forbids(NamedTuple):
    """The boolean mask (True: may attend) that a storage negates, and how it lies there."""

    allowed: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def by(self, added: Tensor) -> Tensor | None:
        """The mask, where `added` shows it as it is."""
        alike = tuple(added.shape) == self.shape and added.stride() == self.stride
        return self.allowed if alike and added.storage_offset() == 0 else None


class Spread(NamedTuple):
    """Weights times values, not yet summed: the marks' axes in the product's storage."""

    mark: Mark
    axes: tuple[Axis, ...]
    over: tuple[int, ...]  # axes along which the values are broadcast: the queries
    constant: bool
    value: Tensor
    box: Box


class Tag:
    """What is known about a storage. Never changed once it is set; a new one takes its place.

    What is not known stays in the class: nearly every operator makes a tag, and most say little.
    """

    same_as = 0  # number of the tensor this is a copy of
    written = False  # written in parts, as a cache is
    parameter = False  # a parameter or buffer; stays one, whatever is done to it
    constant = False  # made from parameters and constants alone
    zero = False  # made as zeros
    sources: Sources = NOBODY  # inputs of the linear maps it comes from
    sides: tuple[Sources, Sources] | None = None  # of the two factors of a product
    features: tuple[Axis, ...] = ()  # axes that come from a parameter
    mark: Mark | None = None  # weights
    log: Mark | None = None  # logarithms of weights
    exp = 0  # number of exponentials not yet divided by their sum
    total: tuple[int, Axis, bool] | None = None  # sum (or log-sum-exp): of whom, over what
    spread: Spread | None = None
    noise = False  # random: a dropout mask
    copied: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # sizes, strides before
    forbids: Forbids | None = None

    def __init__(self) -> None:
        self.number = next(_numbers)


def joined(one: Sources, other: Sources) -> Sources:
    """Sources of two inputs together; too many mean nothing any more."""
    if not other or one == other:
        return one
    if not one:
        return other
    both = one | other
    return both if len(both) <= _MOST_SOURCES else one


def carried(axes: tuple[Axis, ...], source: Tensor, out: Tensor) -> tuple[Axis, ...] | None:
    """Where axes of `source`'s storage lie in `out`'s, whose shape `source` broadcasts to.

    None where an axis cannot be followed.
    """
    if source.shape == out.shape and source.stride() == out.stride():
        return axes
    shift = out.dim() - source.dim()
    if shift < 0:
        return None
    moved = []
    for axis in axes:
        dim = covering(axis, source)
        if axis[0] == 1:
            moved.append((1, 0))
        elif dim is None:
            return None
        else:
            step = source.stride(dim)
            parts = split_over(axis, source)
            if len(parts) > 1:  # over several axes: they must still lie behind each other
                if not _in_line([part + shift for part in parts], out):
                    return None
                moved.append((axis[0], out.stride(dim + shift)))
                continue
            size = min(axis[0], source.shape[dim]) if step == axis[1] else axis[0]
            moved.append((size, out.stride(dim + shift) * (axis[1] // step)))
    return tuple(moved)


def covering(axis: Axis, tensor: Tensor) -> int | None:
    """The axis of `tensor` that an axis of its storage lies in."""
    size, stride = axis
    if size == 1:
        return None
    best, best_step = None, 0
    for dim, (length, step) in enumerate(zip(tensor.shape, tensor.stride())):
        if length > 1 and best_step < step <= stride < step * length and stride % step == 0:
            best, best_step = dim, step
    return best


def split_over(axis: Axis, tensor: Tensor) -> list[int]:
    """The axes of `tensor`, innermost first, that an axis of its storage was cut into."""
    size, stride = axis
    dims: list[int] = []
    reach = stride
    while reach < stride * size:
        found = [
            dim
            for dim, (length, step) in enumerate(zip(tensor.shape, tensor.stride()))
            if step == reach and length > 1 and dim not in dims
        ]
        if not found:
            break
        dims.append(found[0])
        reach *= tensor.shape[found[0]]
    return dims if reach == stride * size else []


def _in_line(dims: list[int], tensor: Tensor) -> bool:
    """Whether axes, innermost first, lie behind each other without a gap."""
    return all(
        tensor.stride(outer) == tensor.stride(inner) * tensor.shape[inner]
        for inner, outer in itertools.pairwise(dims)
    )


def new_axes(source: Tensor, out: Tensor) -> tuple[Axis, ...]:
    """Axes that broadcasting gave `out`: stretched in `source`, or not there at all."""
    shift = out.dim() - source.dim()
    found = []
    for dim, (size, stride) in enumerate(zip(out.shape, out.stride())):
        mine = dim - shift
        if size > 1 and (mine < 0 or source.shape[mine] == 1 or source.stride(mine) == 0):
            found.append((size, stride))
    return tuple(found)


def trimmed(axes: tuple[Axis, ...], tensor: Tensor) -> tuple[Axis, ...]:
    """Axes cut to what a sliced view shows of them."""
    cut = []
    for size, stride in axes:
        dim = covering((size, stride), tensor)
        if (
            dim is not None
            and tensor.stride(dim) == stride
            and not split_over((size, stride), tensor)
        ):
            size = min(size, tensor.shape[dim])
        cut.append((size, stride))
    return tuple(cut)


def within(axis: Axis, features: tuple[Axis, ...]) -> bool:
    """Whether an axis lies inside one that comes from a parameter."""
    size, stride = axis
    return size > 1 and any(step <= stride < step * length for length, step in features)


def covers(tensor: Tensor) -> bool:
    """Whether a tensor shows all of its storage."""
    size = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    return tensor.numel() >= size
