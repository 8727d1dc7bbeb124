"""Buffers with room to spare, in which tensors grow along their second-to-last axis as values.

A tensor that grew is a view of the beginning of a buffer. To extend it, new entries are written
behind it, which nobody can see: the view ends before them. Where somebody has written there already
(a second continuation from the same state), the entries are copied into a buffer of their own.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from regard.types import is_eager

_LEAST = 64  # entries of room that a new buffer has at least
_claiming = threading.Lock()


class Room:
    """Buffers of the same length, and how much of them is taken."""

    def __init__(self, buffers: tuple[Tensor, ...], taken: int) -> None:
        self.buffers = buffers
        self.taken = taken

    def claim(self, start: int, stop: int) -> bool:
        """Take the entries from `start` to `stop`, unless they are taken or not there."""
        with _claiming:
            if start != self.taken or stop > self.buffers[0].shape[-2]:
                return False
            self.taken = stop
            return True

    def holds(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether these are the beginning of the buffers, which may be written now."""
        return all(
            tensor.data_ptr() == buffer.data_ptr()
            and tensor.stride() == buffer.stride()
            and tensor.shape[:-2] == buffer.shape[:-2]
            and buffer.is_inference() == torch.is_inference_mode_enabled()
            for buffer, tensor in zip(self.buffers, tensors)
        )

    def write(self, tensors: tuple[Tensor, ...], start: int, stop: int) -> None:
        """Write `tensors` from `start` to `stop`."""
        for buffer, tensor in zip(self.buffers, tensors):
            buffer[..., start:stop, :].copy_(tensor)

    def first(self, stop: int) -> tuple[Tensor, ...]:
        """The entries up to `stop`, with versions of their own: what is written later is behind
        them, and no reason for autograd to refuse a backward pass."""
        return tuple(buffer.data[..., :stop, :] for buffer in self.buffers)


def extended(
    room: Room | None, held: tuple[Tensor, ...], new: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Room | None]:
    """`held` with `new` behind, and the room they lie in: `room`, another one, or none.

    With gradients and inside graphs this is `torch.cat`, and there is no room.
    """
    alike = all(old.dtype == more.dtype for old, more in zip(held, new))
    if torch.is_grad_enabled() or not alike or not is_eager(*held, *new):
        return tuple(torch.cat(pair, dim=-2) for pair in zip(held, new)), None
    start = held[0].shape[-2]
    stop = start + new[0].shape[-2]
    if room is None or not room.holds(held) or not room.claim(start, stop):
        size = stop + max(_LEAST, stop // 2)
        room = Room(tuple(_longer(tensor, size) for tensor in held), stop)
        room.write(held, 0, start)
    room.write(new, start, stop)
    return room.first(stop), room


def _longer(tensor: Tensor, size: int) -> Tensor:
    return tensor.new_empty(*tensor.shape[:-2], size, tensor.shape[-1])
