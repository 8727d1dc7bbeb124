"""Two runs over the same positions, and their difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from regard.errors import RegardError
from regard.recipe import Mixture, Recipe
from regard.record import Record
from regard.record.stored_attention import StoredRecipe


def differences(before: list[Record], after: list[Record]) -> Iterator[Record]:
    """The signed weights of one run less those of another, site by site."""
    names, others = ([record.name for record in run] for run in (before, after))
    if names != others:
        alone = next(iter(set(names) ^ set(others)), "its order")
        raise RegardError(
            f"page: runs=: {len(names)} and {len(others)} attentions, and {alone!r} differs; "
            "expected two runs of the same model"
        )
    for first, second in zip(before, after):
        if first.shape != second.shape:
            raise RegardError(
                f"page: runs=: '{first.name}' is {tuple(first.shape)} in one run and "
                f"{tuple(second.shape)} in the other; expected texts of the same length"
            )
        ones = torch.ones(first.shape.heads, device=first.recipe.device)
        recipe = Mixture.of(
            [_without_values(second.recipe), _without_values(first.recipe)], [ones, -ones]
        )
        yield Record(
            first.site,
            StoredRecipe(recipe),
            shape=recipe.shape,
            kind=recipe.kind,
            dtype=recipe.dtype,
            query_tokens=first.query_tokens,
            key_tokens=first.key_tokens,
        )


def _without_values(recipe: Recipe) -> Recipe:
    return replace(recipe.plain(), value=None)  # type: ignore[type-var]
