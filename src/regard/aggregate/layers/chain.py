"""Vectors through a stack of attentions, a layer at a time: r ← r · A, in tiles.

A question about a few output tokens is a few row vectors, multiplied by every layer's matrix in
turn. So the memory is that of the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernel.reducers import ReceivedAttention, ReceivedGradient
from regard.kernel.tiles import reduce
from regard.recipe import Recipe

_FEW = 4  # rows up to which they are computed alone, without a walk over all tiles


def start(positions: Sequence[int], recipe: Recipe) -> Tensor:
    """A row vector for each of these positions, (batch, vector, position): 1 there, 0 elsewhere."""
    batch, _, queries, _ = recipe.shape
    rows = torch.zeros(batch, len(positions), queries, dtype=recipe.dtype, device=recipe.device)
    rows[:, range(len(positions)), list(positions)] = 1.0
    return rows


def received(rows: Tensor, recipe: Recipe) -> Tensor:
    """What every head passes on, r · Aₕ: (batch, head, vector, key)."""
    rows = rows.to(recipe.device, recipe.dtype)
    positions = _few_positions(rows)
    if positions is None:
        total: Tensor = reduce(recipe, [ReceivedAttention(rows[:, None])])[0]
        return total
    total = _zeros(rows, recipe)
    with torch.no_grad():
        for position in positions:
            weights = recipe.weights(slice(position, position + 1))  # (batch, head, 1, key)
            total += rows[:, None, :, position, None] * weights
    return total


def gradient_received(
    rows: Tensor, recipe: Recipe, gradient: Tensor, value: Tensor | None, positive: bool = True
) -> Tensor:
    """The same of gradient times weights, r · [Gₕ ∘ Aₕ]⁺."""
    rows = rows.to(recipe.device, recipe.dtype)
    positions = _few_positions(rows)
    if positions is None:
        reducer = ReceivedGradient(rows[:, None], gradient, value, positive=positive)
        total: Tensor = reduce(recipe, [reducer])[0]
        return total
    total = _zeros(rows, recipe)
    with torch.no_grad():
        for position in positions:
            row = slice(position, position + 1)
            by_weight = gradient[:, :, row].to(recipe.dtype)
            if value is not None:
                by_weight = by_weight @ value.to(recipe.dtype).mT
            product = by_weight * recipe.weights(row)
            if positive:
                product = product.clamp_min(0.0)
            total += rows[:, None, :, position, None] * product
    return total


def summing_to_one(
    rows: Float[Tensor, "batch row key"], first: int = 0
) -> Float[Tensor, "batch row key"]:
    """Rows divided by their sums; an empty row keeps its position, that of row 0 being `first`."""
    total = rows.sum(-1, keepdim=True)
    alive = total > 0
    own = rows.new_zeros(rows.shape[1:])
    own.diagonal(first).fill_(1.0)
    return torch.where(alive, rows / torch.where(alive, total, 1.0), own)


def passed_on(
    rows: Tensor, sums: Float[Tensor, "batch one query"], multiply: Callable[[Tensor], Tensor]
) -> Tensor:
    """r · A with the rows of A divided by their sums; an empty row keeps its position."""
    alive = sums > 0
    scaled = torch.where(alive, rows / torch.where(alive, sums, 1.0), 0.0)
    return multiply(scaled) + torch.where(alive, 0.0, rows)


def _few_positions(rows: Tensor) -> list[int] | None:
    """Positions where some vector is not 0, if they are few."""
    positions = rows.ne(0).flatten(0, 1).any(0).nonzero()[:, 0]
    return positions.tolist() if len(positions) <= _FEW else None


def _zeros(rows: Tensor, recipe: Recipe) -> Tensor:
    batch, heads, _, keys = recipe.shape
    return torch.zeros(batch, heads, rows.shape[1], keys, dtype=recipe.dtype, device=recipe.device)
