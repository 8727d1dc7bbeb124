"""What happened at every step of a recurrent unit, as records of a trace."""

from __future__ import annotations

from collections.abc import Mapping

from regard.recipe import Given
from regard.record import Record, Site, Trace
from regard.record.stored_attention import StoredRecipe
from regard.types import Kind, Weights


def step_trace(
    module_class: str, weights: Mapping[str, Weights], kinds: Mapping[str, Kind]
) -> Trace:
    """A record for each name: queries are steps, keys what the weights are over. Detached."""
    records = []
    for name, matrix in weights.items():
        recipe = Given(matrix.detach(), of=kinds[name])
        site = Site(name, module_class, "", "given", attends="cross")
        records.append(
            Record(
                site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
            )
        )
    return Trace(records)
