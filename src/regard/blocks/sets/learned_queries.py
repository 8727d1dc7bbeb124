"""Learned queries: parameters that attend, the same for every example."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.types import Features


class LearnedQueries(nn.Module):
    """Parameters (query, width): latents, seeds or inducing points.

    They are initialised from a normal distribution truncated at ±2, as the latents of Jaegle et
    al. 2021, "Perceiver" (mean 0, standard deviation 0.02). Lee et al. 2019, "Set Transformer",
    name no distribution for their seeds S and inducing points I.

    Args:
        n_queries: number of queries.
        width: features of each.
        std: initial standard deviation.
    """

    def __init__(self, n_queries: int, width: int, *, std: float = 0.02) -> None:
        super().__init__()
        if n_queries < 1 or width < 1:
            raise ShapeError(
                f"LearnedQueries: n_queries={n_queries}, width={width}, expected at least 1 each"
            )
        self.array = nn.Parameter(torch.empty(n_queries, width))
        nn.init.trunc_normal_(self.array, std=std)

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return self.array.shape[0]

    @property
    def width(self) -> int:
        """Features of each."""
        return self.array.shape[1]

    def forward(self, batch: int) -> Features:
        """(batch, query, width), without a copy for each example."""
        queries: Tensor = self.array.expand(batch, -1, -1)
        return queries

    def extra_repr(self) -> str:
        """Sizes, for `print(module)`."""
        return f"{self.n_queries} queries, width {self.width}"
