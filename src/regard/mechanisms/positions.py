"""Position parts that a mechanism takes: `Rotary`, `Alibi`, `RelativeBias`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.bias import Bias
from regard.kernel.positions import AlibiBias, RelativeTable, alibi_slopes, rotary_table, turn
from regard.types import is_eager


class Position(nn.Module):
    """How a mechanism knows where things are: it turns features, or gives a bias, or both."""

    def turn(
        self, features: Float[Tensor, "batch head position width"], start: int
    ) -> Float[Tensor, "batch head position width"]:
        """Features whose first position is `start`, with the position worked in."""
        return features

    def bias(self) -> Bias | None:
        """What to add to the scores."""
        return None


class Rotary(Position):
    """Rotary positions (Su et al. 2021): queries and keys turned by their position.

    The cosines and sines are computed once for each device, dtype and width, and again where a
    longer input comes. They are no part of the state dict, and are not copied with the module.
    """

    def __init__(self, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base
        self._tables: dict[tuple[torch.device, torch.dtype, int], tuple[Tensor, Tensor]] = {}

    def turn(self, features: Tensor, start: int) -> Tensor:
        return turn(features, *self._table(features, start, start + features.shape[2]))

    def _table(self, features: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the positions from `start` to `stop`."""
        if start < 0 or not is_eager(features):  # what a graph traces must not outlive it
            positions = torch.arange(stop - start, device=features.device) + start
            return rotary_table(features, positions, self.base)
        kind = features.device, features.dtype, features.shape[3]
        table = self._tables.get(kind)
        if table is None or table[0].shape[0] < stop:
            with torch.inference_mode(False), torch.no_grad():  # training may use it later
                positions = torch.arange(max(64, 2 * stop), device=features.device)
                table = self._tables[kind] = rotary_table(features, positions, self.base)
        return table[0][start:stop], table[1][start:stop]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": {}}


class Alibi(Position):
    """ALiBi (Press et al. 2022): scores fall linearly with distance, one slope a head."""

    slopes: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def bias(self) -> Bias | None:
        return AlibiBias(self.slopes)


class RelativeBias(Position):
    """A learned number for each head and clipped offset (Shaw et al. 2018; scalar, as in T5)."""

    def __init__(self, n_heads: int, reach: int = 32) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * reach + 1))

    def bias(self) -> Bias | None:
        return RelativeTable(self.table)
