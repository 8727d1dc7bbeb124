"""Rows of weights of any length in a fixed number of cells, and a learned projection of them.

A row over n keys becomes `cells` numbers. Key number i of those that somebody may see covers the
stretch from i/n to (i+1)/n of the row, so padding changes nothing, and rows of 20 keys and of 500
are told alike. Both ways are one product with a matrix that depends on the mask alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.normalise import product
from regard.reuse.checks import at_least_one, check_heads, check_same_positions
from regard.reuse.heads import Join, Joining
from regard.reuse.source import Side, Source

#: Rows of weights belong to queries.
ROW_SIDES: tuple[Side, ...] = ("query", "self")
#: Places (batch, key) of the keys and how many there are (batch, 1), to (batch, key, cell).
Resampling = Callable[[Tensor, Tensor, int], Tensor]


def pooled(place: Tensor, count: Tensor, cells: int) -> Tensor:
    """How much of each key's stretch lies in each cell: the cells of a row sum to what it sums to.

    >>> import torch
    >>> from regard.reuse import pooled
    >>> pooled(torch.arange(4.0)[None], torch.tensor([[4.0]]), 2)[0]
    tensor([[1., 0.],
            [1., 0.],
            [0., 1.],
            [0., 1.]])
    """
    cell = torch.arange(cells, device=place.device, dtype=place.dtype) * (count / cells)[..., None]
    end = cell + (count / cells)[..., None]  # cells measured in keys, (batch, 1, cell)
    start = place[..., None]
    return (torch.minimum(start + 1, end) - torch.maximum(start, cell)).clamp_min(0.0)


def interpolated(place: Tensor, count: Tensor, cells: int) -> Tensor:
    """The row as a curve, read at the middle of each cell, times keys / cells, so that rows of all
    lengths have the same size."""
    middle = torch.arange(cells, device=place.device, dtype=place.dtype) + 0.5
    at = middle * (count / cells)[..., None] - 0.5  # measured in keys, (batch, 1, cell)
    at = at.clamp_min(0.0).minimum((count - 1)[..., None])
    near = (1 - (place[..., None] - at).abs()).clamp_min(0.0)
    return near * (count / cells)[..., None]


def resampler(source: Source, cells: int, resample: Resampling, dtype: torch.dtype) -> Tensor:
    """The matrix (batch or 1, key, cell) that takes rows of weights to cells."""
    if source.alive is None:
        alive = torch.ones(1, source.shape.keys, dtype=torch.bool, device=source.device)
    else:
        alive = source.alive.any(1).to(source.device)
    place = (alive.cumsum(1) - 1).to(dtype)
    count = alive.sum(1, keepdim=True).clamp_min(1).to(dtype)
    return resample(place, count, cells) * alive[..., None]


class ProjectedRows(nn.Module):
    """A learned projection of each query's rows, Σₕ (Aₕ R) Wₕ, with R the resampling to cells.

    Args:
        n_heads: heads of the weights that will come.
        channels: numbers a position gets.
        side: "self", or "query" for cross-attention.
        cells: numbers that stand for a row.
        resample: `pooled` (mass of each cell) or `interpolated`.
        heads: "concat" gives every head a projection of its own; others join the maps first.
    """

    sides = ROW_SIDES

    def __init__(
        self,
        n_heads: int,
        channels: int,
        *,
        side: Side = "self",
        cells: int = 32,
        resample: Resampling = pooled,
        heads: Joining = "concat",
    ) -> None:
        super().__init__()
        at_least_one("ProjectedRows", n_heads=n_heads, channels=channels, cells=cells)
        self.n_heads, self.channels, self.side = n_heads, channels, row_side("ProjectedRows", side)
        self.cells, self.resample = cells, resample
        self.join = Join("ProjectedRows", heads, n_heads)
        self.table = nn.Parameter(torch.empty(self.join.maps, cells, channels))
        nn.init.normal_(self.table, std=self.join.maps**-0.5)

    def forward(self, source: Source) -> Tensor:
        """(batch, query, channels)."""
        weights = rows_of("ProjectedRows", source, self.n_heads, self.side, self.join)
        return through(weights, source, self.cells, self.resample, self.table).sum(1)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.cells} cells to {self.channels} channels"


def through(
    weights: Tensor, source: Source, cells: int, resample: Resampling, table: Tensor
) -> Tensor:
    """Rows resampled, times a table (map, cell, channel): (batch, map, query, channel).

    The small product is made first: keys to channels, then the rows over it.
    """
    matrix = resampler(source, cells, resample, weights.dtype)
    codes = product(matrix[:, None], table.to(weights.dtype)[None])  # (batch or 1, map, key, …)
    return product(weights, codes)


def rows_of(place: str, source: Source, n_heads: int, side: Side, join: Join) -> Tensor:
    """The checked and joined weights, (batch, map, query, key)."""
    check_heads(place, source, n_heads)
    if side == "self":
        check_same_positions(place, source, ROW_SIDES)
    joined: Tensor = join(source.weights(side))
    return joined


def row_side(place: str, side: Side) -> Side:
    """The side of a code that is made of rows."""
    if side not in ROW_SIDES:
        raise RegardError(
            f"{place}: side={side!r}, expected 'query' or 'self': rows of weights belong to queries"
        )
    return side
