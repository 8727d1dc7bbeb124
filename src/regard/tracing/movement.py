"""Which entry of an earlier tensor each entry of a later one is, through gathers and windows.

Operators that move entries (gather, index, roll, pad, unfold) are remembered, not run again: only
where attention turns out to have keys of its own for each query are they repeated, on numbers, to
tell which key each weight belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.tracing.axes import Factor, Origin

Again = Callable[..., Tensor]  # numbers of each source, in its shape, to numbers of the result


class Start(NamedTuple):
    """A storage from which entries were taken first."""

    factors: tuple[Factor, ...]
    item: int  # bytes of an entry
    size: int  # entries

    def along(self, axes: frozenset[Origin]) -> list[Factor] | None:
        """Its axes among these, innermost first; None where one of them is there twice or not."""
        factors = [factor for factor in self.factors if factor.origin.ancestor in axes]
        if len(factors) != len(axes) or len({factor.origin.ancestor for factor in factors}) < len(
            axes
        ):
            return None
        return sorted(factors, key=lambda factor: factor.stride)


class View(NamedTuple):
    """A tensor in a storage, without the storage."""

    storage: Start | Movement
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, storage: Start | Movement) -> View:
        return cls(storage, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))

    @property
    def starts(self) -> list[Start]:
        if isinstance(self.storage, Start):
            return [self.storage]
        return [start for source in self.storage.sources for start in source.starts]

    def places(self, axes: frozenset[Origin], device: torch.device) -> Tensor:
        """For each entry, its place along some axes of where it came from; −1 for padding."""
        storage = self.storage
        if isinstance(storage, Start):
            number = torch.arange(storage.size, device=device) * storage.item
            flat, count = torch.zeros_like(number), 1
            for factor in storage.along(axes) or ():
                flat = flat + number // factor.stride % factor.size * count
                count *= factor.size
        else:
            flat = torch.full((storage.size,), -1, dtype=torch.long, device=device)
            moved = storage.again(*(source.places(axes, device) for source in storage.sources))
            flat.as_strided(storage.shape, storage.stride, storage.offset).copy_(moved)
        return flat.as_strided(self.shape, self.stride, self.offset)


class Movement(NamedTuple):
    """How the entries of a storage were taken from tensors."""

    sources: tuple[View, ...]
    again: Again  # does to numbers what was done to the tensors
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int  # entries of the storage

    @classmethod
    def into(cls, made: Tensor, sources: Sequence[View], again: Again) -> Movement:
        size = made.untyped_storage().nbytes() // made.element_size()
        offset = int(made.storage_offset())
        return cls(tuple(sources), again, tuple(made.shape), made.stride(), offset, size)


def expanded(shape: Sequence[int]) -> Again:
    """Numbers broadcast to a shape, as an operator that works place by place does."""
    return lambda numbers: numbers.expand(tuple(shape))


def positions(
    view: View, axes: Sequence[Origin], device: torch.device
) -> tuple[Tensor, int] | None:
    """For each entry of a tensor its place along some axes, and how many places there are.

    None where it came from tensors that have not all of these axes, or one of them twice.
    """
    wanted = frozenset(origin.ancestor for origin in axes)
    along = [start.along(wanted) for start in view.starts]
    counts = {math.prod(f.size for f in factors) if factors else 0 for factors in along}
    if len(counts) != 1 or 0 in counts:
        return None
    return view.places(wanted, device), counts.pop()
