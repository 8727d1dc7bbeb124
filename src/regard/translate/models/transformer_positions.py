"""Where a Transformer's tokens stand: sinusoids added to their vectors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.translate.models.dropout import Dropout
from regard.types import Features


def sinusoids(start: int, length: int, width: int) -> Float[Tensor, "position width"]:
    """sin(p · rᵢ) in the first half of the features, cos(p · rᵢ) in the second, in float64.

    Vaswani et al. 2017, section 3.5, with rᵢ = 10000^(−2i/width). There sine and cosine take turns;
    here they stand in halves, as in Marian: the same features in another order.
    """
    half = (width + 1) // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) * 2 / width)
    angles = torch.arange(start, start + length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]


class Positions(nn.Module):
    """dropout(√width · features + sinusoids), of features that are vectors of tokens.

    Vaswani et al. 2017, sections 3.4, 3.5 and 5.4.

    Args:
        width: features a position.
        dropout: in training.
        ready: positions computed once; later ones are computed when they come.
    """

    def __init__(self, width: int, *, dropout: float = 0.0, ready: int = 128) -> None:
        super().__init__()
        self.width = width
        self.dropout = Dropout(dropout)
        # No buffer: `module.double()` would keep what float32 had rounded.
        self._table = sinusoids(0, ready, width).to(torch.get_default_dtype())

    def forward(self, features: Features, start: int = 0) -> Features:
        """(row, position, width) in and out; the first position is `start`."""
        places = self._places(start, features)
        placed: Tensor = self.dropout(torch.add(places, features, alpha=self.width**0.5))
        return placed

    def _places(self, start: int, features: Features) -> Float[Tensor, "position width"]:
        """The sinusoids of these positions, rounded once to the features' precision."""
        table, end = self._table, start + features.shape[1]
        if end > len(table):
            return sinusoids(start, features.shape[1], self.width).to(features)
        if table.dtype != features.dtype or table.device != features.device:
            self._table = table = sinusoids(0, len(table), self.width).to(features)
        return table[start:end]
