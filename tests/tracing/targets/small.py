"""One small model, hand-written and fused, and its truth: what `contexts` runs in many ways."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import dense

BATCH, LENGTH, HEADS, WIDTH = 2, 5, 4, 16


class Layer(nn.Module):
    """Self-attention that torch can script, trace, export and map: any leading axes."""

    fused: torch.jit.Final[bool]

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Tensor) -> Tensor:  # TorchScript reads no constants of the module
        return x.unflatten(-1, [4, 4]).transpose(-3, -2)

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.heads(self.query(x)), self.heads(self.key(x))
        value = self.heads(self.value(x))
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            scores = torch.matmul(query, key.transpose(-2, -1)) * 0.5
            mixed = torch.matmul(torch.softmax(scores, -1), value)
        return x + self.out(mixed.transpose(-3, -2).flatten(-2))


class Checkpointed(nn.Module):
    """Recomputes each layer in the backward pass: a site must not be seen twice."""

    def __init__(self, layers: nn.Sequential, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = layers, reentrant

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class Attend(torch.autograd.Function):
    """A forward and a backward by hand, as for kernels of one's own."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        ctx.save_for_backward(weights, value)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        weights, _ = ctx.saved_tensors
        return None, None, weights.mT @ grad


class CustomLayer(Layer):
    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.heads(p(x)) for p in (self.query, self.key, self.value))
        return x + self.out(Attend.apply(query, key, value).transpose(-3, -2).flatten(-2))


def small(fused: bool, layer: Callable[..., Layer] = Layer) -> nn.Sequential:
    return nn.Sequential(layer(fused), layer(fused))


@torch.no_grad()
def truth(layers: Any, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Layer by layer; a layer is given what the true layer before it gave."""
    seen = []
    for layer in layers:
        query, key, value = (
            dense.heads(p(x).float(), HEADS) for p in (layer.query, layer.key, layer.value)
        )
        seen.append(dense.weights(query, key))
        mixed = dense.merged(dense.mix(seen[-1], value)).float()
        x = x + layer.out(mixed).float()
    return seen, x
