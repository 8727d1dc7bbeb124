"""Which entry of an earlier tensor each entry of a later one is, through gathers and windows.

Operators that move entries (gather, index, roll, pad, unfold) are recorded. They are repeated, on
entry numbers, only where every query turns out to have keys of its own, to find which key each
weight belongs to.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.tracing.dataflow.axes import Factor, Origin

Again = Callable[..., Tensor]  # numbers of each source, in its shape, to numbers of the result


class Start(NamedTuple):
    """A storage from which entries were taken first."""

    factors: tuple[Factor, ...]
    item: int  # bytes of an entry
    size: int  # entries

    def along(self, axes: frozenset[Origin]) -> list[Factor] | None:
        """Its factors along these axes, innermost first; None if one is missing, there twice, or
        was gathered by an unknown index."""
        factors = [factor for factor in self.factors if factor.origin.ancestor in axes]
        if len(factors) != len(axes) or {factor.origin.ancestor for factor in factors} != axes:
            return None
        if any(factor.origin.gathered for factor in factors):
            return None
        return sorted(factors, key=lambda factor: factor.stride)

    def positions(self, axes: frozenset[Origin], device: torch.device, whole: bool) -> Tensor:
        """The position of each entry along some axes; `whole`: along their ancestors."""
        byte = torch.arange(self.size, device=device) * self.item
        position, count = torch.zeros_like(byte), 1
        for factor in self.along(axes) or ():
            along = byte // factor.stride % factor.size
            if whole:
                along = torch.tensor(factor.origin.extent, device=device)[along]
            position = position + along * count
            count *= factor.origin.ancestor.size if whole else factor.size
        return position


class View(NamedTuple):
    """A tensor in a storage, without the storage."""

    storage: Start | Movement
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, storage: Start | Movement) -> View:
        return cls(storage, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


class Movement(NamedTuple):
    """How the entries of a storage were taken from tensors."""

    sources: tuple[View, ...]
    again: Again  # does to numbers what was done to the tensors
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int  # entries of the storage

    @classmethod
    def into(cls, output: Tensor, sources: Sequence[View], again: Again) -> Movement:
        size = output.untyped_storage().nbytes() // output.element_size()
        offset = int(output.storage_offset())
        return cls(tuple(sources), again, tuple(output.shape), output.stride(), offset, size)

    def repeated(self, numbers: Sequence[Tensor]) -> Tensor:
        """Numbers of its sources, moved as the entries were; −1 where nothing was written."""
        flat = torch.full((self.size,), -1, dtype=torch.long, device=numbers[0].device)
        flat.as_strided(self.shape, self.stride, self.offset).copy_(self.again(*numbers))
        return flat


def expanded(shape: Sequence[int]) -> Again:
    """Numbers broadcast to a shape, as by an elementwise operator."""
    return lambda numbers: numbers.expand(tuple(shape))


def positions(
    view: View, axes: Sequence[Origin], device: torch.device
) -> tuple[Tensor, int] | None:
    """The position of each entry along some axes (−1: padding), and the number of positions.

    None if a tensor it came from lacks one of these axes, or has it twice.
    """
    wanted = frozenset(origin.ancestor for origin in axes)
    movements = _movements(view)
    views = [source for movement in movements for source in movement.sources] + [view]
    starts = [each.storage for each in views if isinstance(each.storage, Start)]
    along = [start.along(wanted) for start in starts]
    factors = [factor for axes_ in along for factor in axes_ or ()]
    whole = len({factor.origin.root for factor in factors}) > len(wanted)  # slices of one axis
    if whole and any(_unplaced(factor) for factor in factors):
        return None
    counts = {
        0 if each is None else math.prod(f.origin.ancestor.size if whole else f.size for f in each)
        for each in along
    }
    if len(counts) != 1 or 0 in counts:
        return None
    moved: dict[int, Tensor] = {}  # numbers in the storage of a movement, by its id
    uses = Counter(id(each.storage) for each in views)

    def numbers(source: View) -> Tensor:
        storage = source.storage
        if isinstance(storage, Start):
            flat = storage.positions(wanted, device, whole)
        else:
            flat = moved[id(storage)]
            uses[id(storage)] -= 1
            if not uses[id(storage)]:
                del moved[id(storage)]
        return flat.as_strided(source.shape, source.stride, source.offset)

    for movement in movements:
        moved[id(movement)] = movement.repeated([numbers(source) for source in movement.sources])
    return numbers(view), counts.pop()


def _unplaced(factor: Factor) -> bool:
    """Whether the positions of a factor in its ancestor are unknown."""
    extent = factor.origin.extent
    return extent is None or len(extent) != factor.size


def other_axes(view: View, axes: Sequence[Origin]) -> list[Origin] | None:
    """The axis, if any, that the tensor behind a view has beside these; None if several."""
    ancestors = {origin.ancestor for origin in axes}
    movements = _movements(view)
    views = [source for movement in movements for source in movement.sources] + [view]
    factors = [f for each in views if isinstance(each.storage, Start) for f in each.storage.factors]
    others = {factor.origin.ancestor for factor in factors} - ancestors
    return None if len(others) > 1 else list(others)


def _movements(view: View) -> list[Movement]:
    """The movements behind a tensor, in topological order.

    Iterative: a model may roll its states thousands of times.
    """
    order: dict[int, Movement] = {}
    waiting = [view.storage]
    while waiting:
        storage = waiting[-1]
        if isinstance(storage, Start) or id(storage) in order:
            waiting.pop()
            continue
        behind = [source.storage for source in storage.sources]
        unordered = [
            each for each in behind if isinstance(each, Movement) and id(each) not in order
        ]
        if unordered:
            waiting.extend(unordered)
        else:
            order[id(storage)] = storage
            waiting.pop()
    return list(order.values())


def along_dim(index: Tensor, dim: int) -> Tensor:
    """The index of each edge, (edge,); (edge, …) where heads or examples have their own."""
    if index.dim() == 1 or not index.numel():
        return index.flatten()
    columns = index.movedim(dim, 0)
    first = columns
    while first.dim() > 1:
        first = first[..., 0]
    if any(size > 1 and stride for size, stride in zip(columns.shape[1:], columns.stride()[1:])):
        own = bool((columns.movedim(0, -1) != first).any())
        return columns if own else first
    return first


def same_index(left: Tensor, right: Tensor | None) -> bool:
    """Whether two lists of edges have the same queries; `right` may repeat them over features."""
    if right is None or left.shape != right.shape[: left.dim()]:
        return False
    features = [1] * (right.dim() - left.dim())
    return bool(torch.equal(left.reshape(*left.shape, *features).expand_as(right), right))
