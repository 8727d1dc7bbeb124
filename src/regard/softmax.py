"""Arithmetic between scores and weights that survives empty rows, underflow and autocast."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.types import NEVER, LogSumExp, Scores, Weights


def softmax(scores: Scores, sink: Tensor | None = None) -> Weights:
    """Softmax over the keys; zeros, with finite gradients, where a row is all -inf."""
    keys = scores.shape[-1]
    if sink is not None:
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    if scores.shape[-1] == 0:
        return scores
    dead = scores.detach().amax(-1, keepdim=True) == -torch.inf
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)[..., :keys]


def log_softmax(scores: Scores, sink: Tensor | None = None) -> Weights:
    """Logarithm of `softmax`, `NEVER` where that is 0."""
    keys = scores.shape[-1]
    if sink is not None:
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    if keys == 0:
        return scores[..., :0]
    dead = scores.detach().amax(-1, keepdim=True) == -torch.inf
    never = (scores == -torch.inf)[..., :keys]
    return scores.masked_fill(dead, 0.0).log_softmax(-1)[..., :keys].masked_fill(never, NEVER)


def log_sum_exp(scores: Scores, sink: Tensor | None = None) -> LogSumExp:
    """Logarithm of each row's denominator; 0 where a row is all -inf."""
    if sink is not None:
        scores = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    if scores.shape[-1] == 0:
        return scores.sum(-1)
    peak = scores.detach().amax(-1, keepdim=True)
    dead = peak == -torch.inf
    scores = scores.masked_fill(dead, 0.0)
    total = exp(scores - peak.masked_fill(dead, 0.0)).sum(-1)
    return (peak[..., 0] + total.log()).masked_fill(dead[..., 0], 0.0)


def exp(logs: Tensor, out: Tensor | None = None) -> Tensor:
    """Exponential that never underflows: where a processor's exp would leave the normal numbers it
    is up to 250 times slower, and attention is full of such places. At least 1e-38, never 0."""
    floor = -87.0 if logs.dtype == torch.float32 else -708.0
    return (
        logs.clamp_min(floor).exp() if out is None else torch.clamp_min(logs, floor, out=out).exp_()
    )


def product(first: Tensor, second: Tensor) -> Tensor:
    """A matrix product in the dtype of its factors, whatever autocast would make of it."""
    if not autocasting(first.device):
        return first @ second
    with torch.autocast(first.device.type, enabled=False):
        return first @ second


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for a device; some devices do not know it."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)
