"""What is known about the numbers in a storage, and how it moves from tensor to tensor.

A tag sits in the `__dict__` of a tensor's untyped storage, under a key of its capture: views share
it, it dies with the storage, and it is neither pickled nor copied. A tag never holds a tensor of
its own storage (nothing could collect that), only where axes lie in it, as sizes and strides.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal, NamedTuple

from torch import Tensor

from regard.tracing.axes import Dims, Factor, Origin
from regard.tracing.movement import Movement, View
from regard.types import Kind

Sources = frozenset[int]

_numbers = itertools.count(1)
NOBODY: Sources = frozenset()
_MOST_SOURCES = 8


class Box:
    """Holds a tensor as it was, such as weights before dropout; emptied when the capture ends."""

    __slots__ = ("__weakref__", "dims", "tensor")

    def __init__(self, tensor: Tensor, dims: Dims) -> None:
        self.tensor: Tensor | None = tensor
        self.dims = dims


class Candidate:
    """A softmax that may turn out to be attention."""

    __slots__ = (
        "done", "key", "keys", "kind", "origins", "place", "reason", "segments", "shape", "sides",
        "softmax_output", "widths",
    )  # fmt: skip

    def __init__(self, place: Any, key: int, shape: tuple[int, ...]) -> None:
        self.place = place  # where it was made; None when a filter left it out
        self.key = key  # which axis of its marks is the softmax axis
        self.shape = shape
        self.kind = "distribution"
        self.reason: str | None = None  # why it is not attention, where that is known
        self.sides: tuple[Sources, Sources] | None = None
        self.keys: tuple[Origin, ...] = ()  # the axes that the softmax runs over
        self.origins: tuple[Origin, ...] = ()  # all axes, in the order of its dimensions
        self.segments: Tensor | None = None  # of a softmax over edges: the query of each
        self.softmax_output: Box | None = None  # what the softmax made, until it has met its values
        self.widths: tuple[Origin, ...] = ()  # the axes that were summed to make the scores
        self.done = False

    def has_key(self, origin: Origin) -> bool:
        """Whether an axis is the softmax axis, or entries of it."""
        while origin not in self.keys:
            if origin.base is None:
                return False
            origin = origin.base
        return True


class Mark(NamedTuple):
    """Weights of a candidate; `before` is what dropout was given."""

    candidate: Candidate
    before: Box | None = None
    others: tuple[Candidate, ...] = ()  # of weights that were put together
    kind: Kind | None = None  # what was made of them since; None: what the softmax made
    power: bool = False  # whether they were multiplied by themselves


class Forbids(NamedTuple):
    """The boolean mask (True: may attend) that a storage negates, and how it lies there."""

    allowed: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def by(self, added: Tensor) -> Tensor | None:
        """The mask, where `added` shows it as it is."""
        alike = tuple(added.shape) == self.shape and added.stride() == self.stride
        return self.allowed if alike and added.storage_offset() == 0 else None


Use = Literal["key", "row", "shared"]  # summed, of the weights alone, of weights and values
Uses = dict[Origin, Use]


class Spread(NamedTuple):
    """Weights times values, not yet summed."""

    mark: Mark
    uses: Uses  # what each axis of the weights is there
    constant: bool
    value: Tensor
    value_dims: Dims
    value_view: View
    shape: tuple[int, ...]  # of the weights
    box: Box


class Total(NamedTuple):
    """A sum of exponentials."""

    numbers: frozenset[int]  # of what
    keys: tuple[Origin, ...]  # over which axes
    exact: bool = True  # whether nothing was done to it
    shifted: bool = False  # whether a number was added
    segments: Tensor | None = None  # over edges: the query of each
    at_edges: bool = False  # whether each edge has the sum of its query
    inverse: bool = False  # whether it is 1 / the sum
    dim: int = 0  # of the edges


class WeightSum(NamedTuple):
    """Weights of a candidate, summed over some of their axes."""

    candidate: Candidate
    keys: tuple[Origin, ...]


class Pairing(NamedTuple):
    """A product of two inputs, places by places, as scores are."""

    rows: tuple[Origin, ...]
    columns: tuple[Origin, ...]
    steps: tuple[str, ...] = ()  # what was done to it since, other than masks and factors


class Late(NamedTuple):
    """Exponentials that met values before they were divided by their sum."""

    number: int
    keys: tuple[Origin, ...]
    contraction: Any
    powers: Box
    scores: Box | None  # what they are exponentials of, with no maximum subtracted
    sides: tuple[Sources, Sources] | None
    widths: tuple[Origin, ...]


class Tag:
    """What is known about a storage. An operator that writes there puts a new one in its place.

    Details may be filled in later, as `factors` are when they are first asked for. What is not
    known stays in the class: nearly every operator makes a tag, and most say little.
    """

    same_as = 0  # number of the tensor this is a copy of
    written = False  # written in parts, as a cache is
    parameter = False  # a parameter or buffer; stays one, whatever is done to it
    constant = False  # made from parameters and constants alone
    zero = False  # made as zeros
    sources: Sources = NOBODY  # inputs of the linear maps it comes from
    sides: tuple[Sources, Sources] | None = None  # of the two factors of a product
    multiplied: tuple[Sources, Sources] | None = None  # of two factors, place by place
    factors: tuple[Factor, ...] | None = None  # the axes of the storage, and where they come from
    entries: tuple[Any, ...] | None = None  # of a linear map: which entries it was given
    moved: Movement | None = None  # how its entries were taken from another storage
    widths: tuple[Origin, ...] = ()  # of scores: the axes that were summed to make them
    mark: Mark | None = None  # weights
    log: Mark | None = None  # logarithms of weights
    exp = 0  # number of exponentials not yet divided by their sum
    total: Total | None = None  # a sum of exponentials, or a log-sum-exp
    scores: Box | None = None  # of exponentials: their exponents, with no maximum subtracted
    powers: tuple[Tag, Spread] | None = None  # exponentials times values, place by place
    late: tuple[Late, ...] = ()  # exponentials times values, not yet divided
    weight_sum: WeightSum | None = None
    pairing: Pairing | None = None
    of_weights = False  # made from weights alone, as their inverse is
    normaliser = False  # made from log-sum-exps
    spread: Spread | None = None
    scalars: Spread | None = None  # the same, where the values may as well be a mask
    noise = False  # random: a dropout mask
    forbids: Forbids | None = None

    def __init__(self) -> None:
        self.number = next(_numbers)


def joined(left: Sources, right: Sources) -> Sources:
    """Sources of two inputs together; of too many the latest."""
    if not right or left == right:
        return left
    if not left:
        return right
    both = left | right
    return both if len(both) <= _MOST_SOURCES else frozenset(sorted(both)[-_MOST_SOURCES:])


def joined_late(left: tuple[Late, ...], right: tuple[Late, ...]) -> tuple[Late, ...]:
    """Both together, nothing twice."""
    return (*left, *(late for late in right if not any(late is each for each in left)))


def joined_totals(left: Total | None, right: Total, alone: bool) -> Total:
    """A sum of sums of exponentials."""
    if left is None:
        return right._replace(exact=right.exact and alone)
    shifted = left.shifted or right.shifted
    return left._replace(numbers=left.numbers | right.numbers, exact=False, shifted=shifted)


def stretched(source: Tensor, out: Tensor) -> bool:
    """Whether broadcasting gave `out` an axis that `source` has not."""
    shift = out.dim() - source.dim()
    return any(
        size > 1
        and (dim < shift or source.shape[dim - shift] == 1 or not source.stride(dim - shift))
        for dim, size in enumerate(out.shape)
    )


def covers(tensor: Tensor) -> bool:
    """Whether a tensor shows all of its storage."""
    size = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    return tensor.numel() >= size


def storage_address(tensor: Tensor) -> int | None:
    """Where a tensor's storage lies; None for those without one (sparse, nested, functional)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:
        return None
