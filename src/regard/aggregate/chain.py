"""Vectors through a stack of attentions, a layer at a time: r ← r · A, in tiles.

A question about a few output tokens is a few row vectors. They meet every layer's matrix in
turn, so the memory is that of the vectors, whatever the length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.kernel.reduce import reduce
from regard.kernel.reducers import ReceivedAttention, ReceivedGradient
from regard.recipe import Recipe

_FEW = 4  # rows up to which they are made as they are, without a walk over the rest


def start(places: Sequence[int], recipe: Recipe) -> Tensor:
    """One row vector for each place, (batch, vector, position): 1 there, 0 elsewhere."""
    batch, _, queries, _ = recipe.shape
    rows = torch.zeros(batch, len(places), queries, dtype=recipe.dtype, device=recipe.device)
    rows[:, range(len(places)), list(places)] = 1.0
    return rows


def received(rows: Tensor, recipe: Recipe) -> Tensor:
    """What every head passes on, r · Aₕ: (batch, head, vector, key)."""
    rows = rows.to(recipe.device, recipe.dtype)
    places = _few_places(rows)
    if places is None:
        answer: Tensor = reduce(recipe, [ReceivedAttention(rows[:, None])])[0]
        return answer
    total = _nothing(rows, recipe)
    with torch.no_grad():
        for place in places:
            weights = recipe.weights(slice(place, place + 1))  # (batch, head, 1, key)
            total += rows[:, None, :, place, None] * weights
    return total


def gradient_received(
    rows: Tensor, recipe: Recipe, gradient: Tensor, value: Tensor | None, positive: bool = True
) -> Tensor:
    """The same of gradient times weights, r · [Gₕ ∘ Aₕ]⁺."""
    rows = rows.to(recipe.device, recipe.dtype)
    places = _few_places(rows)
    if places is None:
        asked = ReceivedGradient(rows[:, None], gradient, value, positive=positive)
        answer: Tensor = reduce(recipe, [asked])[0]
        return answer
    total = _nothing(rows, recipe)
    with torch.no_grad():
        for place in places:
            here = slice(place, place + 1)
            given = gradient[:, :, here].to(recipe.dtype)
            if value is not None:
                given = given @ value.to(recipe.dtype).mT
            product = given * recipe.weights(here)
            if positive:
                product = product.clamp_min(0.0)
            total += rows[:, None, :, place, None] * product
    return total


def _few_places(rows: Tensor) -> list[int] | None:
    """Positions where some vector is not 0, if they are few."""
    places = rows.ne(0).flatten(0, 1).any(0).nonzero()[:, 0]
    return places.tolist() if len(places) <= _FEW else None


def _nothing(rows: Tensor, recipe: Recipe) -> Tensor:
    batch, heads, _, keys = recipe.shape
    return torch.zeros(batch, heads, rows.shape[1], keys, dtype=recipe.dtype, device=recipe.device)
