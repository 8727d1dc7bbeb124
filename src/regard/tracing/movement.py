"""Which entry of an earlier tensor each entry of a later one is, through gathers and windows.

Operators that move entries (gather, index, roll, pad, unfold) are remembered, not run again: only
where attention turns out to have keys of its own for each query are they repeated, on numbers, to
tell which key each weight belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.tracing.axes import Factor, Origin

Again = Callable[[Tensor], Tensor]


class Start(NamedTuple):
    """A storage from which entries were taken first."""

    factors: tuple[Factor, ...]
    item: int  # bytes of an entry
    size: int  # entries
    number: int  # of its tag


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
    def start(self) -> Start:
        storage = self.storage
        return storage if isinstance(storage, Start) else storage.source.start

    def numbers(self, device: torch.device) -> Tensor:
        """For each entry, its number in the first storage; −1 for one that came from elsewhere."""
        storage = self.storage
        if isinstance(storage, Start):
            flat = torch.arange(storage.size, device=device)
        else:
            flat = torch.full((storage.size,), -1, dtype=torch.long, device=device)
            moved = storage.again(storage.source.numbers(device))
            flat.as_strided(storage.shape, storage.stride, storage.offset).copy_(moved)
        return flat.as_strided(self.shape, self.stride, self.offset)


class Movement(NamedTuple):
    """How the entries of a storage were taken from a tensor."""

    source: View
    again: Again  # does to numbers what was done to the tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size: int  # entries of the storage

    @classmethod
    def into(cls, made: Tensor, source: View, again: Again) -> Movement:
        size = made.untyped_storage().nbytes() // made.element_size()
        offset = int(made.storage_offset())
        return cls(source, again, tuple(made.shape), made.stride(), offset, size)


def expanded(shape: Sequence[int]) -> Again:
    """Numbers broadcast to a shape, as an operator that works place by place does."""
    return lambda numbers: numbers.expand(tuple(shape))


def positions(numbers: Tensor, start: Start, axes: Sequence[Origin]) -> tuple[Tensor, int] | None:
    """Places along some axes of the first storage, flat, and how many there are."""
    wanted = {origin.ancestor for origin in axes}
    factors = [factor for factor in start.factors if factor.origin.ancestor in wanted]
    if not factors:
        return None
    place, count = torch.zeros_like(numbers), 1
    for factor in sorted(factors, key=lambda factor: factor.stride):
        place = place + (numbers * start.item // factor.stride) % factor.size * count
        count *= factor.size
    return torch.where(numbers < 0, -1, place), count
