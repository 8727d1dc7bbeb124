"""Whether methods agree: Kendall's τ_b of their orders of positions (Kendall, 1945).

With s_ij = sign(a_i − a_j), τ_b = Σ s_ij t_ij / √(Σ s_ij² · Σ t_ij²): 1 for the same order, −1
for the reverse, about 0 for orders that have nothing to do with each other. Ties count in
neither sum.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError
from regard.types import pieces

_ROWS = 256  # positions compared with all others at a time


def kendall(
    first: Float[Tensor, " position"], second: Float[Tensor, " position"]
) -> Float[Tensor, ""]:
    """Kendall's τ_b of two attributions; NaN where one of them is the same everywhere.

    >>> kendall(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 3.0, 2.0]))
    tensor(0.3333, dtype=torch.float64)
    """
    if first.shape != second.shape or first.dim() != 1:
        raise ShapeError(
            f"kendall: {tuple(first.shape)} and {tuple(second.shape)}, expected two (position,)"
        )
    return pairwise(torch.stack([first, second]))[0, 1]


def pairwise(attributions: Float[Tensor, "method position"]) -> Float[Tensor, "method method"]:
    """Kendall's τ_b of each method with each."""
    values = attributions.detach().double()
    count, length = values.shape
    together = torch.zeros(count, count, dtype=torch.float64, device=values.device)
    for rows in pieces(length, _ROWS):
        signs = (values[:, rows, None] - values[:, None, :]).sign().flatten(1)
        together += signs @ signs.mT
    alone = together.diagonal()
    agreement = together / (alone[:, None] * alone[None, :]).sqrt()
    return agreement.masked_fill((alone[:, None] == 0) | (alone[None, :] == 0), torch.nan)
