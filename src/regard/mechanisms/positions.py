"""Position parts that a mechanism takes: `Rotary`, `Alibi`, `RelativeBias`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.bias import Bias
from regard.kernel.positions import AlibiBias, RelativeTable, alibi_slopes, rotate


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
    """Rotary positions (Su et al. 2021): queries and keys turned by their position."""

    def __init__(self, base: float = 10000.0) -> None:
        super().__init__()
        self.base = base

    def turn(self, features: Tensor, start: int) -> Tensor:
        positions = torch.arange(features.shape[2], device=features.device) + start
        return rotate(features, positions, self.base)


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
