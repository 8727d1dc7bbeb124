"""Preallocated buffers in which tensors grow along their second-to-last axis, as values.

A tensor is a view of a buffer. To extend it, new entries are written behind the end of the view,
where no other view sees them. If they are taken already (a second continuation of the same state),
the entries are copied into a new buffer. Entries in front are dropped by a view that starts later.

A tensor that lies in no buffer gets one without spare entries, and spare ones when it is extended
again. Beams are reordered, and so copied, after every step: they would pay for spare entries that
they never use.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from regard.types import is_eager

_LEAST = 64  # minimum spare entries of a new buffer
_claiming = threading.Lock()


class CacheBuffer:
    """Tensors of the same length, and how many of their entries are taken."""

    def __init__(self, tensors: tuple[Tensor, ...], taken: int) -> None:
        self.tensors = tensors
        self.taken = taken

    def claim(self, start: int, stop: int) -> bool:
        """Reserve entries `start` to `stop`; False if they are taken or beyond the end."""
        with _claiming:
            if start != self.taken or stop > self.tensors[0].shape[-2]:
                return False
            self.taken = stop
            return True

    def start_of(self, views: tuple[Tensor, ...]) -> int | None:
        """The entry where these views start; None if they are elsewhere, or the buffer cannot be
        written now."""
        if self.tensors[0].is_inference() != torch.is_inference_mode_enabled():
            return None
        start, *others = map(_start, self.tensors, views)
        return start if all(other == start for other in others) else None

    def write(self, entries: tuple[Tensor, ...], start: int, stop: int) -> None:
        """Write `entries` from `start` to `stop`."""
        for tensor, new in zip(self.tensors, entries):
            tensor.narrow(-2, start, stop - start).copy_(new)

    def view(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """The entries from `start` to `stop`, with their own version counters: autograd need not
        refuse a backward pass because of entries written later."""
        return tuple([tensor.data.narrow(-2, start, stop - start) for tensor in self.tensors])


def extended(
    buffer: CacheBuffer | None, held: tuple[Tensor, ...], new: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], CacheBuffer | None]:
    """`held` followed by `new`, and their buffer: `buffer`, a new one, or None.

    With gradients and inside graphs this is `torch.cat`, without a buffer.
    """
    alike = all(old.dtype == more.dtype for old, more in zip(held, new))
    if not alike or not _writes(*held, *new):
        return tuple(torch.cat(pair, dim=-2) for pair in zip(held, new)), None
    old, more = held[0].shape[-2], new[0].shape[-2]
    start = None if buffer is None else buffer.start_of(held)
    if buffer is None or start is None or not buffer.claim(start + old, start + old + more):
        buffer, start = _new_buffer(held, old + more, spare=start is not None), 0
    buffer.write(new, start + old, start + old + more)
    return buffer.view(start, start + old + more), buffer


def shortened(
    buffer: CacheBuffer | None, held: tuple[Tensor, ...], first: int, last: int
) -> tuple[tuple[Tensor, ...], CacheBuffer | None]:
    """The `first` and `last` entries of `held`, and their buffer.

    Memory of the other entries is freed, unless the buffer is hardly larger than what stays.
    """
    stays = first + last
    if not _writes(*held):
        pieces = [(tensor[..., :first, :], _last(tensor, last)) for tensor in held]
        return tuple(torch.cat(pair, dim=-2) if first else pair[1] for pair in pieces), None
    fits = buffer is not None and buffer.tensors[0].shape[-2] <= 2 * (stays + _LEAST)
    if fits and not first:
        return tuple(_last(tensor, last) for tensor in held), buffer
    buffer = _new_buffer(tuple(tensor[..., :first, :] for tensor in held), stays)
    buffer.write(tuple(_last(tensor, last) for tensor in held), first, stays)
    return buffer.view(0, stays), buffer


def _writes(*tensors: Tensor) -> bool:
    """Whether buffers are written: without gradients, and outside graphs."""
    return not torch.is_grad_enabled() and is_eager(*tensors)


def _new_buffer(held: tuple[Tensor, ...], stop: int, *, spare: bool = True) -> CacheBuffer:
    """A buffer with `held` in front, `stop` entries taken, and spare ones if wanted."""
    size = stop + (max(_LEAST, stop // 2) if spare else 0)
    buffer = CacheBuffer(tuple(t.new_empty(*t.shape[:-2], size, t.shape[-1]) for t in held), stop)
    buffer.write(held, 0, held[0].shape[-2])
    return buffer


def _last(tensor: Tensor, count: int) -> Tensor:
    return tensor[..., tensor.shape[-2] - count :, :]


def _start(tensor: Tensor, view: Tensor) -> int | None:
    """The entry of `tensor` at which the view starts; None if it is not one of it."""
    entry = tensor.stride(-2) * tensor.element_size()
    distance = view.data_ptr() - tensor.data_ptr()
    alike = view.stride() == tensor.stride() and view.shape[:-2] == tensor.shape[:-2]
    inside = entry > 0 and 0 <= distance < entry * tensor.shape[-2] and distance % entry == 0
    return distance // entry if alike and inside else None
