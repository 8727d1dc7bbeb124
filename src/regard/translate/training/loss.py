"""What is made small: the cross-entropy with label smoothing, summed over real tokens."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def cross_entropy(
    logits: Float[Tensor, "place vocabulary"],
    target: Int[Tensor, " place"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """-Σ q log p, summed over places; q gives the target 1 - ε, and ε is spread over all
    (Szegedy et al., 2016, section 7).

    Equal to torch's `cross_entropy(…, label_smoothing=ε, reduction="sum")`. The gradient,
    softmax - q, is made in one pass, and in the place of the probabilities.
    """
    loss: Tensor = _CrossEntropy.apply(logits, target, smoothing)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        wide = logits if logits.dtype == torch.float64 else logits.float()
        log_total = wide.logsumexp(-1)  # (place)
        chosen = wide.gather(-1, target[:, None])[:, 0]
        loss = log_total - (1 - smoothing) * chosen
        if smoothing:
            loss = loss - smoothing * wide.mean(-1)
        ctx.save_for_backward(logits, target, log_total)
        ctx.smoothing = smoothing
        return loss.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, target, log_total = ctx.saved_tensors
        made = (logits - log_total[:, None]).exp_()  # the probabilities
        if ctx.smoothing:
            made -= ctx.smoothing / made.shape[-1]
        places = torch.arange(len(target), device=target.device)
        made[places, target] -= 1 - ctx.smoothing
        return made.mul_(gradient).to(logits.dtype), None, None
