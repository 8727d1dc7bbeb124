"""Preallocated buffers in which tensors grow along their second-to-last axis, as values.

A tensor is a view of a buffer. To extend it, new entries are written behind the end of the view,
where no other view sees them. If they are taken already (a second continuation of the same state),
the entries are copied into a new buffer. Entries in front are dropped by a view that starts later.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from regard.types import is_eager

_LEAST = 64  # minimum spare entries of a new buffer
_claiming = threading.Lock()


class Room:
    """Buffers of the same length, and how much of them is taken."""

    def __init__(self, buffers: tuple[Tensor, ...], taken: int) -> None:
        self.buffers = buffers
        self.taken = taken

    def claim(self, start: int, stop: int) -> bool:
        """Reserve entries `start` to `stop`; False if they are taken or beyond the end."""
        with _claiming:
            if start != self.taken or stop > self.buffers[0].shape[-2]:
                return False
            self.taken = stop
            return True

    def start_of(self, tensors: tuple[Tensor, ...]) -> int | None:
        """The entry where these tensors start; None if they are elsewhere, or the buffers cannot be
        written now."""
        if self.buffers[0].is_inference() != torch.is_inference_mode_enabled():
            return None
        start, *others = map(_start, self.buffers, tensors)
        return start if all(other == start for other in others) else None

    def write(self, tensors: tuple[Tensor, ...], start: int, stop: int) -> None:
        """Write `tensors` from `start` to `stop`."""
        for buffer, tensor in zip(self.buffers, tensors):
            buffer.narrow(-2, start, stop - start).copy_(tensor)

    def view(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """The entries from `start` to `stop`, with their own version counters: autograd need not
        refuse a backward pass because of entries written later."""
        return tuple([buffer.data.narrow(-2, start, stop - start) for buffer in self.buffers])


def extended(
    room: Room | None, held: tuple[Tensor, ...], new: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Room | None]:
    """`held` followed by `new`, and their buffers: `room`, new ones, or None.

    With gradients and inside graphs this is `torch.cat`, without buffers.
    """
    alike = all(old.dtype == more.dtype for old, more in zip(held, new))
    if not alike or not _writes(*held, *new):
        return tuple(torch.cat(pair, dim=-2) for pair in zip(held, new)), None
    old, more = held[0].shape[-2], new[0].shape[-2]
    start = None if room is None else room.start_of(held)
    if room is None or start is None or not room.claim(start + old, start + old + more):
        room, start = _room(held, old + more), 0
    room.write(new, start + old, start + old + more)
    return room.view(start, start + old + more), room


def shortened(
    room: Room | None, held: tuple[Tensor, ...], first: int, last: int
) -> tuple[tuple[Tensor, ...], Room | None]:
    """The `first` and `last` entries of `held`, and their buffers.

    Memory of the other entries is freed, unless the buffer is hardly larger than what stays.
    """
    stays = first + last
    if not _writes(*held):
        pieces = [(tensor[..., :first, :], _last(tensor, last)) for tensor in held]
        return tuple(torch.cat(pair, dim=-2) if first else pair[1] for pair in pieces), None
    roomy = room is not None and room.buffers[0].shape[-2] <= 2 * (stays + _LEAST)
    if roomy and not first:
        return tuple(_last(tensor, last) for tensor in held), room
    room = _room(tuple(tensor[..., :first, :] for tensor in held), stays)
    room.write(tuple(_last(tensor, last) for tensor in held), first, stays)
    return room.view(0, stays), room


def _writes(*tensors: Tensor) -> bool:
    """Whether buffers are written: without gradients, and outside graphs."""
    return not torch.is_grad_enabled() and is_eager(*tensors)


def _room(held: tuple[Tensor, ...], stop: int) -> Room:
    """New buffers with `held` in front, `stop` entries reserved, and spare ones."""
    size = stop + max(_LEAST, stop // 2)
    room = Room(tuple(t.new_empty(*t.shape[:-2], size, t.shape[-1]) for t in held), stop)
    room.write(held, 0, held[0].shape[-2])
    return room


def _last(tensor: Tensor, count: int) -> Tensor:
    return tensor[..., tensor.shape[-2] - count :, :]


def _start(buffer: Tensor, tensor: Tensor) -> int | None:
    """The entry at which the tensor starts; None if it is not in the buffer."""
    entry = buffer.stride(-2) * buffer.element_size()
    distance = tensor.data_ptr() - buffer.data_ptr()
    alike = tensor.stride() == buffer.stride() and tensor.shape[:-2] == buffer.shape[:-2]
    inside = entry > 0 and 0 <= distance < entry * buffer.shape[-2] and distance % entry == 0
    return distance // entry if alike and inside else None
