"""Small models for the tests of capture, each with its truth beside it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS = 8, 2


def words(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Attention(nn.Module):
    """Self-attention with grouped heads; remembers what it mixed, and weights it made."""

    def __init__(
        self, fused: bool = True, groups: int = HEADS, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fused, self.causal, self.dropout = fused, causal, dropout
        self.num_heads, self.groups = HEADS, groups
        width = WIDTH // HEADS * groups
        self.query, self.key, self.value = (
            nn.Linear(WIDTH, size) for size in (WIDTH, width, width)
        )
        self.out = nn.Linear(WIDTH, WIDTH)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.query(x), self.key(x), self.value(x))
        )
        return query, key, value

    def weigh(self, x: Tensor) -> Tensor:
        """The weights as a formula: (batch, head, query, key)."""
        query, key, _ = self.parts(x)
        scores = query @ key.repeat_interleave(HEADS // self.groups, 1).mT / 2
        if self.causal:
            scores = scores.masked_fill(
                torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf
            )
        return scores.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.parts(x)
        if self.fused:
            mixed = F.scaled_dot_product_attention(
                query, key, value, is_causal=self.causal, enable_gqa=self.groups != HEADS
            )
        else:
            weights = self.weigh(x)
            self.weights = weights
            dropped = F.dropout(weights, self.dropout, self.training)
            mixed = dropped @ value.repeat_interleave(HEADS // self.groups, 1)
        self.mixed = mixed
        return self.out(mixed.transpose(1, 2).flatten(2))


class Stack(nn.Module):
    """Layers with a residual stream; `weigh` gives the truth of each."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x

    def weigh(self, x: Tensor) -> list[Tensor]:
        found = []
        for layer in self.layers:
            found.append(layer.weigh(x))  # type: ignore[operator]
            x = x + layer(x)
        return found


def fused(count: int = 2, **options: bool) -> Stack:
    return Stack(*(Attention(True, **options) for _ in range(count)))  # type: ignore[arg-type]


def handmade(count: int = 2, **options: bool) -> Stack:
    return Stack(*(Attention(False, **options) for _ in range(count)))  # type: ignore[arg-type]


class NumpyAttention(nn.Module):
    """Attention that torch does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        given = self.project(x).detach().numpy()
        scores = given @ given.swapaxes(-1, -2)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return torch.from_numpy(weights @ given)


@torch.library.custom_op("regard_tests::flash_attn", mutates_args=())
def flash_attn(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Somebody's own kernel."""
    return (query @ key.mT * scale).softmax(-1) @ value


@flash_attn.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return torch.empty_like(query)


class Custom(nn.Module):
    """Calls the kernel above."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return flash_attn(heads, 2 * heads, heads, 0.5).transpose(1, 2).flatten(2)

    def weigh(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return (heads @ heads.mT).softmax(-1)


class Ring(nn.Module):
    """A static cache: a buffer of fixed length that is written in place, round and round."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.num_heads, self.room = HEADS, room
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.begin()

    def begin(self) -> None:
        self.keys = torch.zeros(1, HEADS, self.room, WIDTH // HEADS)
        self.values, self.fed = torch.zeros_like(self.keys), 0
        self.truth: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(x).chunk(3, -1)
        )
        for step in range(x.shape[1]):
            place = (self.fed + step) % self.room
            self.keys[:, :, place], self.values[:, :, place] = key[:, :, step], value[:, :, step]
        self.fed += x.shape[1]
        there = (torch.arange(self.room) < self.fed)[None, None, None]
        return F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=there)

    def weigh(self, x: Tensor) -> Tensor:
        """The truth of the last call."""
        query, _, _ = self.project(x).chunk(3, -1)
        query = query.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        there = (torch.arange(self.room) < self.fed)[None, None, None]
        return (query @ self.keys.mT / 2).masked_fill(~there, -torch.inf).softmax(-1)
