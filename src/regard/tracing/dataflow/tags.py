"""Tags: what is known about the numbers in a storage, and the store that keeps them.

A tag sits in the `__dict__` of a tensor's untyped storage, under a key per capture: views share it,
it dies with the storage, and it is neither pickled nor copied. A tag never holds a tensor of its
own storage, which would be an uncollectable cycle, only the sizes and strides of its axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor

from regard.record.stored_attention import detached
from regard.tracing.dataflow.axes import (
    Dims,
    Factor,
    Origin,
    dims_of,
    fresh_dims,
    laid_out,
    with_slices,
)
from regard.tracing.dataflow.entry_maps import Movement, Start, View
from regard.types import Kind

Sources = frozenset[int]

_numbers = itertools.count(1)
_captures = itertools.count(1)
NOBODY: Sources = frozenset()
_MOST_SOURCES = 8


class Box:
    """A tensor as it was, such as weights before dropout; emptied when the capture ends."""

    __slots__ = ("__weakref__", "dims", "tensor")

    def __init__(self, tensor: Tensor, dims: Dims) -> None:
        self.tensor: Tensor | None = tensor
        self.dims = dims


class Candidate:
    """A softmax that may be attention."""

    __slots__ = (
        "call_site", "dims", "done", "key", "keys", "kind", "operator", "origins", "reason",
        "scores", "segments", "shape", "sides", "softmax_output", "widths",
    )  # fmt: skip

    def __init__(self, call_site: Any, key: int, shape: tuple[int, ...]) -> None:
        self.call_site = call_site  # of the softmax; None when a filter excluded it
        self.key = key  # which axis of its marks is the softmax axis
        self.shape = shape
        self.kind = "distribution"
        self.scores: tuple[int, View] | None = None  # the token and view of its input
        self.reason: str | None = None  # why it is not attention, if it is not
        self.sides: tuple[Sources, Sources] | None = None
        self.keys: tuple[Origin, ...] = ()  # the axes that the softmax runs over
        self.origins: tuple[Origin, ...] = ()  # all axes, in the order of its dimensions
        self.dims: Dims = []  # the same, with their sizes, by dimension
        self.operator = ""  # by which its weights were made
        self.segments: Tensor | None = None  # of a softmax over edges: the query of each
        self.softmax_output: Box | None = None  # until it has met its values
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
    """Weights of a candidate; `before` is the input of dropout."""

    candidate: Candidate
    before: Box | None = None
    others: tuple[Candidate, ...] = ()  # of concatenated or subtracted weights
    kind: Kind | None = None  # after later operators; None: that of the softmax
    power: bool = False  # whether they were multiplied by themselves


class NegatedMask(NamedTuple):
    """The boolean mask (True: may attend) that a storage negates, and its layout there."""

    allowed: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def allowed_by(self, added: Tensor) -> Tensor | None:
        """The mask, if `added` is a view of all of it."""
        alike = tuple(added.shape) == self.shape and added.stride() == self.stride
        return self.allowed if alike and added.storage_offset() == 0 else None


Use = Literal["key", "row", "shared"]  # summed; an axis of the weights alone; of both factors
Uses = dict[Origin, Use]


class WeightedValues(NamedTuple):
    """Weights times values, not yet summed."""

    mark: Mark
    uses: Uses  # the use of each axis of the weights
    constant: bool
    value: Tensor
    value_dims: Dims
    value_view: View
    shape: tuple[int, ...]  # of the weights
    box: Box


class ExpSum(NamedTuple):
    """A sum of exponentials."""

    numbers: frozenset[int]  # of what
    keys: tuple[Origin, ...]  # over which axes
    exact: bool = True  # False once it was changed
    shifted: bool = False  # a number was added
    segments: Tensor | None = None  # over edges: the query of each
    at_edges: bool = False  # each edge has the sum of its query
    inverse: bool = False  # it is 1 / the sum
    dim: int = 0  # of the edges


class WeightSum(NamedTuple):
    """Weights of a candidate, summed over some of their axes."""

    candidate: Candidate
    keys: tuple[Origin, ...]


class Pairing(NamedTuple):
    """A product of two inputs, positions by positions, as scores are."""

    rows: tuple[Origin, ...]
    columns: tuple[Origin, ...]
    steps: tuple[str, ...] = ()  # operators applied since, other than masks and factors


class LateSoftmax(NamedTuple):
    """Exponentials that met values before they were divided by their sum."""

    number: int
    keys: tuple[Origin, ...]
    contraction: Any
    powers: Box
    scores: Box | None  # their exponents, before a maximum was subtracted
    sides: tuple[Sources, Sources] | None
    widths: tuple[Origin, ...]


class Tag:
    """What is known about a storage; an operator that writes there replaces it.

    `factors` may be filled in later. Defaults live in the class: nearly every operator makes a
    tag, and most set few fields.
    """

    same_as = 0  # number of the tensor this is a copy of
    written = False  # written in parts, as a cache is
    parameter = False  # a parameter or buffer, whatever is written to it
    constant = False  # computed from parameters and constants alone
    zero = False  # created as zeros
    sources: Sources = NOBODY  # inputs of the linear maps it comes from
    sides: tuple[Sources, Sources] | None = None  # of the two factors of a product
    multiplied: tuple[Sources, Sources] | None = None  # of the factors of an elementwise product
    factors: tuple[Factor, ...] | None = None  # the axes of the storage, with their origins
    entries: tuple[Any, ...] | None = None  # of a linear map: which entries were its input
    moved: Movement | None = None  # how its entries were taken from another storage
    widths: tuple[Origin, ...] = ()  # of scores: the axes that were summed to make them
    mark: Mark | None = None  # weights
    log: Mark | None = None  # logarithms of weights
    exp = 0  # number of exponentials not yet divided by their sum
    total: ExpSum | None = None  # a sum of exponentials, or a log-sum-exp
    scores: Box | None = None  # of exponentials: their exponents, before a maximum was subtracted
    weighted_powers: tuple[Tag, WeightedValues] | None = None  # exponentials times values
    late: tuple[LateSoftmax, ...] = ()  # the same, summed over keys and not yet divided
    weight_sum: WeightSum | None = None
    pairing: Pairing | None = None
    of_weights = False  # computed from weights alone, as their inverse is
    normaliser = False  # computed from log-sum-exps
    weighted_values: WeightedValues | None = None
    weighted_scalars: WeightedValues | None = None  # the same, unless the values are a mask
    noise = False  # random: a dropout mask
    negated_mask: NegatedMask | None = None

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


def joined_late(
    left: tuple[LateSoftmax, ...], right: tuple[LateSoftmax, ...]
) -> tuple[LateSoftmax, ...]:
    """The union, without repeats."""
    return (*left, *(late for late in right if not any(late is each for each in left)))


def joined_totals(left: ExpSum | None, right: ExpSum, alone: bool) -> ExpSum:
    """A sum of sums of exponentials."""
    if left is None:
        return right._replace(exact=right.exact and alone)
    shifted = left.shifted or right.shifted
    return left._replace(numbers=left.numbers | right.numbers, exact=False, shifted=shifted)


def stretched(source: Tensor, out: Tensor) -> bool:
    """Whether broadcasting gave `out` an axis that `source` lacks."""
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
    """The address of a tensor's storage; None without one (sparse, nested, functional)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except RuntimeError:
        return None


class TagStore:
    """The tags of one capture, kept with the storages they describe."""

    def __init__(self, graph: bool) -> None:
        self.key = f"regard_{next(_captures)}"
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self._choices: WeakKeyDictionary[Any, dict[int, set[Origin]]] = WeakKeyDictionary()
        self._tagged: list[ref[Any]] = []  # storages with a tag
        self._prune_at = 1 << 12

    def tag(self, tensor: Tensor) -> Tag | None:
        """The tag of a tensor's storage."""
        try:
            tag: Tag | None = tensor.untyped_storage().__dict__.get(self.key)
        except RuntimeError:  # sparse, nested or functional tensors
            return None
        return tag

    def put(self, tensor: Tensor, tag: Tag) -> None:
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:  # sparse, nested or functional tensors
            return
        tags = storage.__dict__
        before = tags.get(self.key)
        if before is None:
            self._tagged.append(ref(storage))
            if len(self._tagged) > self._prune_at:
                self._tagged = [storage for storage in self._tagged if storage() is not None]
                self._prune_at = max(self._prune_at, 2 * len(self._tagged))
        elif before.parameter and not tag.written:
            return
        tags[self.key] = tag

    def ensured(self, tensor: Tensor) -> Tag:
        """The tag of a tensor's storage, a new one if it has none."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        return tag

    def forget(self, tensor: Tensor) -> None:
        """Remove the tag of a storage."""
        if self.tag(tensor) is not None:
            tensor.untyped_storage().__dict__.pop(self.key, None)

    def constants(self, tensors: Sequence[Tensor]) -> None:
        """Tag parameters and buffers."""
        for outer in tensors:
            for tensor in plain_tensors(outer):
                if tensor.layout == torch.strided:
                    tag = Tag()
                    tag.constant = tag.parameter = True
                    self.put(tensor, tag)

    def clear(self) -> None:
        """Remove every tag, also from storages that live on, and release every tensor."""
        for reference in self._tagged:
            storage = reference()
            if storage is not None:
                storage.__dict__.pop(self.key, None)
        self._tagged.clear()
        self._choices.clear()
        for box in list(self.boxes):
            box.tensor = None

    def box(self, tensor: Tensor, dims: Dims | None = None) -> Box:
        """Hold a tensor; it is copied before the model changes it."""
        box = Box(tensor, dims or [])
        self.boxes.add(box)
        return box

    def weights_box(self, weights: Tensor, mark: Mark) -> Box:
        """Hold the weights before dropout, or as they are now."""
        if mark.before is not None:
            return mark.before
        return self.box(weights if self.graph else detached(weights), self.dims(weights))

    def protect(self, target: Tensor) -> None:
        """Copy what boxes hold of a storage that is about to change."""
        address = storage_address(target) if self.boxes else None
        if address is None:
            return
        for box in list(self.boxes):
            held = box.tensor
            if held is not None and storage_address(held) == address:
                fresh = torch.empty(0, dtype=held.dtype, device=held.device)
                storage = held.untyped_storage().clone()
                box.tensor = fresh.set_(storage, held.storage_offset(), held.shape, held.stride())

    def sources(self, tensor: Tensor) -> Sources:
        """The inputs a tensor comes from by linear maps; itself if there are none."""
        tag = self.ensured(tensor)
        return tag.sources or frozenset((tag.same_as or tag.number,))

    def token(self, tensor: Tensor) -> int:
        """A number that identifies this tensor, or the one it is a copy of."""
        tag = self.ensured(tensor)
        return tag.same_as or tag.number

    def constant(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.constant

    def dims(self, tensor: Tensor) -> Dims:
        """The axes in each dimension of a tensor; fresh ones if nothing is known."""
        tag = self.ensured(tensor)
        if tag.factors is None:
            dims = fresh_dims(tensor, "parameter" if tag.constant else "data")
            tag.factors = laid_out(dims, tensor)
            return dims
        return dims_of(tensor, tag.factors)

    def sliced_dims(self, tensor: Tensor) -> Dims:
        """`dims` with slices as axes of their own, except in scores, weights and caches."""
        dims, tag = self.dims(tensor), self.tag(tensor)
        if tag is None or tag.factors is None or covers(tensor) or tag.written:
            return dims
        if tag.sides is not None or tag.mark is not None or tag.log is not None or tag.exp:
            return dims
        return with_slices(tensor, dims, tag.factors)

    def chosen_from(self, index: Tensor) -> set[Origin]:
        """The axes from which an index of edges chose (mutable).

        An index is identified by its storage and offset, as a row of an edge list is.
        """
        by_offset = self._choices.setdefault(index.untyped_storage(), {})
        return by_offset.setdefault(int(index.storage_offset()), set())

    def view(self, tensor: Tensor) -> View:
        """The entries of a tensor: where they lie, and how they were moved there."""
        self.dims(tensor)
        tag = self.tag(tensor)
        assert tag is not None and tag.factors is not None
        item = tensor.element_size()
        size = tensor.untyped_storage().nbytes() // item
        factors = () if tag.written else tag.factors  # written in parts: unknown origin
        return View.of(tensor, tag.moved or Start(factors, item, size))

    def is_moved(self, tensor: Tensor) -> bool:
        """Whether its entries were gathered or taken from windows."""
        tag = self.tag(tensor)
        return tag is not None and tag.moved is not None

    def is_zero(self, tensor: Tensor) -> bool:
        """Whether a tensor was created as zeros."""
        tag = self.tag(tensor)
        return tag is not None and tag.zero

    def is_weights(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.mark is not None


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, or those inside a wrapper, as of quantised and sharded parameters."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):
                yield from plain_tensors(inner)
    else:
        yield tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor inside a wrapper that holds a single one, as a shard does; else itself."""
    inside = list(plain_tensors(tensor))
    return inside[0] if len(inside) == 1 else tensor
