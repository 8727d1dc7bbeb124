"""Small models and traces that the tests of records share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.recipe import Dot, Recipe
from regard.record import Record, Site, Trace
from regard.record.stored_attention import StoredRecipe


class Attention(nn.Module):
    """Two heads; fused, or with a matrix of its own."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.fused, self.num_heads = fused, 2
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = (query @ key.mT / 2).softmax(-1) @ value
        return mixed.transpose(1, 2).flatten(2)


class Stack(nn.Module):
    """Layers that attend to their own input."""

    def __init__(self, *fused: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(choice) for choice in fused)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def words(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def dot(seed: int = 0, queries: int = 3, keys: int = 5) -> Dot:
    return Dot(
        words(2, 2, queries, 4, seed=seed),
        words(2, 2, keys, 4, seed=seed + 1),
        words(2, 2, keys, 6, seed=seed + 2),
        scale=0.5,
    )


def record(path: str, recipe: Recipe | None = None, *, held_as: Any = "recipe", **site: Any) -> Any:
    """A record of a recipe, without any model."""
    recipe = dot() if recipe is None else recipe
    place = {"module_class": "Attention", "source": "model.py:1", "operator": "softmax"}
    return Record(
        Site(path, **(place | site)),
        StoredRecipe(recipe),
        shape=recipe.shape,
        kind=recipe.kind,
        dtype=recipe.dtype,
        held_as=held_as,
    )


def three_layers_twice() -> Trace:
    """encoder.layer.0 to .2, run two times: six records in the order they happened."""
    return Trace(
        [
            record(f"encoder.layer.{layer}", dot(10 * step + layer), call=step + 1, step=step)
            for step in range(2)
            for layer in range(3)
        ]
    )
