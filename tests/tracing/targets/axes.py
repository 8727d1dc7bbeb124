"""Axes that are easily mistaken: folded, flattened, gathered, or of one head at a time.

Batch, heads and lengths are different numbers, so that no wrong axis fits by chance; some batches
are multiples of the number of heads, so that a number alone tells nothing.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Target, dense, functions

B, H, N, D = 8, 4, 6, 16
K = 3  # neighbours of a point
TARGETS: list[Target] = []


class Model(nn.Module):
    """Has `num_heads`, whether or not a head axis is there."""

    num_heads = H

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.place, self.score = nn.Linear(D, D), nn.Linear(D, 1)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), self.k(x), self.v(x)

    def heads(self, x: Tensor) -> list[Tensor]:
        """(batch, head, position, width)"""
        return [part.unflatten(-1, (H, D // H)).transpose(1, 2) for part in self.parts(x)]


def _add(function: Callable, truth: Callable, inputs: Callable[[], tuple[Any, ...]]) -> None:
    build = functions.builder(Model, function, truth, inputs)
    TARGETS.append(Target(f"axes_{function.__name__}", "axes", build))


def _positions() -> tuple[Tensor]:
    return (torch.randn(B, N, D) * 2,)


def _heads_truth(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = model.heads(x)
    weights = dense.weights(q, k)
    return weights, dense.merged(dense.mix(weights, v))


def of_heads(function: Callable) -> Callable:
    """A spelling of ordinary multi-head attention."""
    _add(function, _heads_truth, _positions)
    return function


@of_heads
def scores_flattened(self, x):
    q, k, v = self.heads(x)
    scores = (q @ k.mT / 2).reshape(-1, N)
    return (scores.softmax(-1).view(B, H, N, N) @ v).transpose(1, 2).flatten(2)


@of_heads
def heads_before_batch(self, x):
    q, k, v = (part.transpose(0, 1).reshape(H * B, N, -1) for part in self.heads(x))
    mixed = torch.bmm(torch.bmm(q, k.mT).div(2).softmax(-1), v)
    return mixed.view(H, B, N, -1).permute(1, 2, 0, 3).flatten(2)


@of_heads
def heads_cut_and_joined(self, x):
    q, k, v = (torch.cat(part.split(D // H, 2), 0) for part in self.parts(x))
    mixed = (q @ k.mT / 2).softmax(-1) @ v
    return torch.cat(mixed.split(B, 0), 2)


@of_heads
def heads_last(self, x):
    q, k, v = (part.unflatten(-1, (H, D // H)) for part in self.parts(x))
    weights = torch.einsum("bqhd,bkhd->bqkh", q, k).div(2).softmax(2)
    return torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(2)


@of_heads
def places_before_batch(self, x):
    q, k, v = (part.transpose(0, 1).reshape(N, B * H, -1) for part in self.parts(x))
    weights = (q.transpose(0, 1) @ k.permute(1, 2, 0) / 2).softmax(-1)
    return (weights @ v.transpose(0, 1)).transpose(0, 1).reshape(N, B, D).transpose(0, 1)


def _separate(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = model.parts(x)
    weights = dense.weights(q, k)
    return weights, dense.mix(weights, v)


def heads_of_the_input(self, x):
    """(batch, head, position, width) comes in, and is projected: the number of heads tells."""
    q, k, v = self.parts(x)
    return (q @ k.mT / 4).softmax(-1) @ v


_add(heads_of_the_input, _separate, lambda: (torch.randn(B, H, N, D),))


def _folded(model: Model, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = dense.weights(q[:, None], k[:, None], scale=0.5)
    return weights, dense.mix(weights, v[:, None])[:, 0]


def folded_inputs(self, q, k, v):
    """(batch × head, position, width) or as many examples: nothing tells."""
    return (q @ k.mT / 2).softmax(-1) @ v


TARGETS.append(
    Target(
        "axes_folded_inputs",
        "unknown",
        functions.builder(
            Model, folded_inputs, _folded, lambda: tuple(torch.randn(2 * H, N, 4) for _ in "qkv")
        ),
    )
)


def _one_head(model: Model, x: Tensor) -> tuple[list[Tensor], Tensor]:
    q, k, v = (part.unbind(1) for part in model.heads(x))
    weights = [dense.weights(q[h][:, None], k[h][:, None]) for h in range(H)]
    mixed = [dense.mix(w, values[:, None])[:, 0] for w, values in zip(weights, v)]
    return weights, torch.cat(mixed, -1)


def head_at_a_time(self, x):
    q, k, v = self.parts(x)
    mixed = []
    for h in range(H):
        at = slice(h * D // H, (h + 1) * D // H)
        weights = (q[..., at] @ k[..., at].mT / 2).softmax(-1)
        mixed.append(weights @ v[..., at])
    return torch.cat(mixed, -1)


_add(head_at_a_time, _one_head, _positions)


# Values with a query axis of their own.


def _pairs(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (part.double() for part in model.parts(x))
    between = model.place(x[:, :, None] - x[:, None]).double()
    scores = F.linear(
        q[:, :, None] - k[:, None] + between,
        model.score.weight.double(),
        model.score.bias.double(),
    )
    weights = dense.softmax(scores[..., 0])
    mixed = torch.einsum("bij,bijd->bid", weights, v[:, None] + between)
    return weights[:, None], mixed


def values_of_pairs(self, x):
    """Point transformers (Zhao et al. 2021): where two points lie enters scores and values."""
    q, k, v = self.parts(x)
    between = self.place(x[:, :, None] - x[:, None])
    scores = self.score(q[:, :, None] - k[:, None] + between)[..., 0]
    return torch.einsum("bij,bijd->bid", scores.softmax(-1), v[:, None] + between)


_add(values_of_pairs, _pairs, _positions)


def _with_neighbours() -> tuple[Tensor, Tensor]:
    chosen = torch.stack([torch.randperm(N)[:K] for _ in range(B * N)]).view(B, N, K)
    return torch.randn(B, N, D) * 2, chosen


def _neighbours(model: Model, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (part[:, None] for part in model.parts(x))
    allowed = torch.zeros(B, N, N, dtype=torch.bool).scatter(2, chosen, True)[:, None]
    weights = dense.weights(q, k, allowed=allowed)
    return weights, dense.mix(weights, v)[:, 0]


def _neighbours_of_heads(model: Model, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = model.heads(x)
    allowed = torch.zeros(B, N, N, dtype=torch.bool).scatter(2, chosen, True)[:, None]
    weights = dense.weights(q, k, allowed=allowed)
    return weights, dense.merged(dense.mix(weights, v))


def keys_gathered(self, x, chosen):
    q, k, v = self.parts(x)
    index = chosen.flatten(1)[..., None].expand(-1, -1, D)
    k, v = (part.gather(1, index).view(B, N, K, D) for part in (k, v))
    weights = torch.einsum("bid,bijd->bij", q, k).div(4).softmax(-1)
    return torch.einsum("bij,bijd->bid", weights, v)


def keys_indexed(self, x, chosen):
    q, k, v = self.parts(x)
    example = torch.arange(B)[:, None, None]
    k, v = k[example, chosen], v[example, chosen]
    weights = (q[:, :, None] * k).sum(-1).div(4).softmax(-1)
    return (weights[..., None] * v).sum(2)


def keys_gathered_by_a_changed_index(self, x, chosen):
    """The model writes to its index before the keys meet the weights (backward would not allow)."""
    q, k, v = self.parts(x)
    index = chosen.flatten(1)[..., None].repeat(1, 1, D)
    k, v = (part.detach().gather(1, index).view(B, N, K, D) for part in (k, v))
    index.zero_()
    weights = torch.einsum("bid,bijd->bij", q, k).div(4).softmax(-1)
    return torch.einsum("bij,bijd->bid", weights, v)


def keys_indexed_by_a_changed_index(self, x, chosen):
    q, k, v = self.parts(x)
    example, chosen = torch.arange(B)[:, None, None], chosen.clone()
    k, v = k.detach()[example, chosen], v.detach()[example, chosen]
    chosen += 1
    weights = (q[:, :, None] * k).sum(-1).div(4).softmax(-1)
    return (weights[..., None] * v).sum(2)


def keys_indexed_flat(self, x, chosen):
    """Examples behind each other, and numbers that run through all of them."""
    q, k, v = self.parts(x)
    flat = (chosen + torch.arange(B)[:, None, None] * N).view(-1)
    k, v = (part.reshape(B * N, D)[flat].view(B, N, K, D) for part in (k, v))
    weights = (q[:, :, None] @ k.mT / 4).softmax(-1)
    return (weights @ v)[:, :, 0]


def keys_made_of_gathered(self, x, chosen):
    """Neighbours first, then their keys and values."""
    near = x[torch.arange(B)[:, None, None], chosen]
    q, k, v = self.q(x), self.k(near), self.v(near)
    weights = torch.einsum("bid,bijd->bij", q, k).div(4).softmax(-1)
    return torch.einsum("bij,bijd->bid", weights, v)


def keys_gathered_of_heads(self, x, chosen):
    q, k, v = self.heads(x)
    index = chosen.flatten(1)[:, None, :, None].expand(-1, H, -1, D // H)
    k, v = (part.gather(2, index).view(B, H, N, K, -1) for part in (k, v))
    weights = torch.einsum("bhid,bhijd->bhij", q, k).div(2).softmax(-1)
    return torch.einsum("bhij,bhijd->bhid", weights, v).transpose(1, 2).flatten(2)


for _gathering in (
    *(keys_gathered, keys_indexed, keys_indexed_flat, keys_made_of_gathered),
    *(keys_gathered_by_a_changed_index, keys_indexed_by_a_changed_index),
):
    _add(_gathering, _neighbours, _with_neighbours)
_add(keys_gathered_of_heads, _neighbours_of_heads, _with_neighbours)


def _band(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Padding is attended to: its zeros have a score of 0, and take a share."""
    q, k, v = (part[:, None].double() for part in model.parts(x))
    near = torch.ones(N, N, dtype=torch.bool).tril(1).triu(-1)
    scores = torch.where(near, q @ k.mT / 4, -torch.inf)
    outside = torch.full((B, 1, N, 1), -torch.inf, dtype=torch.double)
    outside[:, :, [0, -1]] = 0.0
    weights = torch.cat([scores, outside], -1).softmax(-1)[..., :N]
    return weights, (weights @ v)[:, 0]


def windows_unfolded(self, x):
    q, k, v = self.parts(x)
    k, v = (F.pad(part, (0, 0, 1, 1)).unfold(1, 3, 1).mT for part in (k, v))
    weights = torch.einsum("bid,bijd->bij", q, k).div(4).softmax(-1)
    return torch.einsum("bij,bijd->bid", weights, v)


_add(windows_unfolded, _band, _positions)

SIDE = 4


def _image() -> tuple[Tensor]:
    return (torch.randn(B, SIDE, SIDE + 1, D) * 2,)


def _patches(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    places = x.flatten(1, 2)
    q, k, v = (part.unflatten(-1, (H, -1)).transpose(1, 2).double() for part in model.parts(places))
    row, column = (
        torch.arange(SIDE * (SIDE + 1)) // (SIDE + 1),
        torch.arange(SIDE * (SIDE + 1)) % (SIDE + 1),
    )
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    scores = torch.where(near, q @ k.mT / 2, -torch.inf)
    outside = (
        (9 - near.sum(-1))
        .clamp(min=1)
        .log()[:, None]
        .masked_fill(near.sum(-1, keepdim=True) == 9, -torch.inf)
    )
    outside = outside.double().expand(B, H, -1, 1)
    weights = torch.cat([scores, outside], -1).softmax(-1)[..., :-1]
    return weights, dense.merged(weights @ v).view(x.shape)


def windows_of_an_image(self, x):
    """Stand-alone self-attention (Ramachandran et al. 2019): 3 × 3 places around each."""
    q, k, v = self.parts(x)
    k, v = (
        F.unfold(part.permute(0, 3, 1, 2), 3, padding=1).view(B, H, D // H, 9, -1)
        for part in (k, v)
    )
    q = q.flatten(1, 2).mT.reshape(B, H, D // H, 1, -1)
    weights = (q * k).sum(2).div(2).softmax(2)  # (batch, head, window, place)
    return (weights[:, :, None] * v).sum(3).flatten(1, 2).mT.reshape(x.shape)


_add(windows_of_an_image, _patches, _image)
