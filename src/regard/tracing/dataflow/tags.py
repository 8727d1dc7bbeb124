"""What is known about the numbers in a storage, and how it moves from tensor to tensor.

A tag sits in the `__dict__` of a tensor's untyped storage, under a key of its capture: views share
it, it dies with the storage, and it is neither pickled nor copied. A tag never holds a tensor of
its own storage (nothing could collect that), only where axes lie in it, as sizes and strides.
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
from regard.tracing.dataflow.movement import Movement, Start, View
from regard.types import Kind

Sources = frozenset[int]

_numbers = itertools.count(1)
_captures = itertools.count(1)
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
        "call_site",
        "done",
        "key",
        "keys",
        "kind",
        "origins",
        "reason",
        "segments",
        "shape",
        "sides",
        "softmax_output",
        "widths",
    )  # fmt: skip

    def __init__(self, call_site: Any, key: int, shape: tuple[int, ...]) -> None:
        self.call_site = call_site  # where it was made; None when a filter left it out
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


class NegatedMask(NamedTuple):
    """The boolean mask (True: may attend) that a storage negates, and how it lies there."""

    allowed: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def allowed_by(self, added: Tensor) -> Tensor | None:
        """The mask, where `added` shows it as it is."""
        alike = tuple(added.shape) == self.shape and added.stride() == self.stride
        return self.allowed if alike and added.storage_offset() == 0 else None


Use = Literal["key", "row", "shared"]  # summed, of the weights alone, of weights and values
Uses = dict[Origin, Use]


class WeightedValues(NamedTuple):
    """Weights times values, not yet summed."""

    mark: Mark
    uses: Uses  # what each axis of the weights is there
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


class LateSoftmax(NamedTuple):
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
    total: ExpSum | None = None  # a sum of exponentials, or a log-sum-exp
    scores: Box | None = None  # of exponentials: their exponents, with no maximum subtracted
    late: tuple[LateSoftmax, ...] = ()  # exponentials times values, not yet divided
    weight_sum: WeightSum | None = None
    pairing: Pairing | None = None
    of_weights = False  # made from weights alone, as their inverse is
    normaliser = False  # made from log-sum-exps
    weighted_values: WeightedValues | None = None
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
    """Both together, nothing twice."""
    return (*left, *(late for late in right if not any(late is each for each in left)))


def joined_totals(left: ExpSum | None, right: ExpSum, alone: bool) -> ExpSum:
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


class TagStore:
    """The tags of one capture, kept with the storages they describe."""

    def __init__(self, graph: bool) -> None:
        self.key = f"regard_{next(_captures)}"
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self._choices: WeakKeyDictionary[Any, dict[int, set[Origin]]] = WeakKeyDictionary()
        self._tagged: list[ref[Any]] = []  # storages with a tag, to be cleaned up
        self._prune_at = 1 << 12

    def tag(self, tensor: Tensor) -> Tag | None:
        """What is known about a tensor's storage."""
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
                self._tagged = [there for there in self._tagged if there() is not None]
                self._prune_at = max(self._prune_at, 2 * len(self._tagged))
        elif before.parameter and not tag.written:
            return
        tags[self.key] = tag

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
        self._choices.clear()
        for box in list(self.boxes):
            box.tensor = None

    def box(self, tensor: Tensor, dims: Dims | None = None) -> Box:
        """A tensor as it is now: copied before the model changes it."""
        box = Box(tensor, dims or [])
        self.boxes.add(box)
        return box

    def weights_box(self, weights: Tensor, mark: Mark) -> Box:
        """The weights as they are now, kept outside their storage's tag."""
        if mark.before is not None:
            return mark.before
        kept = weights if self.graph else detached(weights)
        return self.box(kept, self.dims(weights))

    def protect(self, target: Tensor) -> None:
        """A storage is about to change: what boxes hold of it is copied."""
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

    def sliced_dims(self, tensor: Tensor) -> Dims:
        """The same, where slices are axes of their own; not of scores, weights and caches."""
        dims, tag = self.dims(tensor), self.tag(tensor)
        if tag is None or tag.factors is None or covers(tensor) or tag.written:
            return dims
        if tag.sides is not None or tag.mark is not None or tag.log is not None or tag.exp:
            return dims
        return with_slices(tensor, dims, tag.factors)

    def chosen_from(self, index: Tensor) -> set[Origin]:
        """The axes from which an index of edges chose; to be added to.

        An index is a part of a storage that begins at an offset, as a row of an edge list is.
        """
        by_offset = self._choices.setdefault(index.untyped_storage(), {})
        return by_offset.setdefault(int(index.storage_offset()), set())

    def view(self, tensor: Tensor) -> View:
        """Where the entries of a tensor lie, and how they came there."""
        self.dims(tensor)
        tag = self.tag(tensor)
        assert tag is not None and tag.factors is not None
        item = tensor.element_size()
        size = tensor.untyped_storage().nbytes() // item
        factors = () if tag.written else tag.factors  # written in parts: nobody knows from where
        return View.of(tensor, tag.moved or Start(factors, item, size))

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
