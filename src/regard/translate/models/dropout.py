"""Dropout whose mask is drawn 16 bits an element."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_STEPS = 1 << 16  # how finely 16 bits divide the rate


class Dropout(nn.Dropout):
    """`nn.Dropout`, for less time on a CPU: there torch draws 64 bits an element, this draws 16.

    The rate is rounded to a multiple of 1/65536, and what is kept is divided by the rounded rate,
    so that the mean stays what it was. The bits come from torch's generator.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape in and out."""
        return dropped(x, self.p, self.training)


def dropped(x: Tensor, rate: float, training: bool) -> Tensor:
    """Some elements 0, the others larger by as much; in evaluation `x` itself."""
    out = round(rate * _STEPS)
    if not training or not out:
        return x
    if out == _STEPS or not x.is_cpu:
        return F.dropout(x, rate)
    result: Tensor = _DropoutFunction.apply(x, out)  # type: ignore[no-untyped-call]
    return result


def kept(x: Tensor, out: int) -> Tensor:
    """Shaped as `x`: 0 with probability out/65536, elsewhere 65536/(65536 - out)."""
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    return (bits >= out - _STEPS // 2).to(x.dtype).mul_(_STEPS / (_STEPS - out))


class _DropoutFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, out: int) -> Tensor:
        mask = kept(x, out)
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient * mask, None
