"""Attention as slowly and plainly as it can be written: one row after another, in float64."""

import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    """Along the last axis. Rows without any finite score are 0."""
    powers = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    return powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)


def heads(x: Tensor, count: int) -> Tensor:
    """(batch, position, head * width) to (batch, head, position, width)."""
    batch, positions, width = x.shape
    return x.reshape(batch, positions, count, width // count).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """(batch, head, position, width) to (batch, position, head * width)."""
    return x.transpose(1, 2).flatten(2)


@torch.no_grad()
def weights(
    query: Tensor,
    key: Tensor,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """(batch, head, query, key) of heads (batch, head, position, width).

    A key with fewer heads serves groups of heads. `allowed` is boolean, True means "may attend";
    `bias` is added to the scaled scores; both broadcast.
    """
    batch, n_heads, queries, width = query.shape
    shape = (batch, n_heads, queries, key.shape[2])
    scale = width**-0.5 if scale is None else scale
    group = n_heads // key.shape[1]
    scores = torch.empty(shape, dtype=torch.float64)
    for example in range(batch):
        for head in range(n_heads):
            for row in range(queries):
                keys = key[example, head // group].double()
                scores[example, head, row] = (keys * query[example, head, row].double()).sum(-1)
    scores *= scale
    if bias is not None:
        scores += bias.double()
    if allowed is not None:
        scores[~allowed.expand(shape)] = -torch.inf
    return softmax(scores)


@torch.no_grad()
def mix(weights: Tensor, value: Tensor) -> Tensor:
    """(batch, head, query, width), in float64: the output of every head."""
    group = weights.shape[1] // value.shape[1]
    return weights @ value.double().repeat_interleave(group, 1)
