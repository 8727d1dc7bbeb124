"""Rows of weights of any length, resampled to a fixed number of cells, and their projection.

A row over n keys becomes `cells` numbers. Key i of those that some query may see covers the part
from i/n to (i+1)/n of the row, so padding changes nothing, and rows of 20 keys and of 500 are
comparable. Resampling is one product with a matrix that depends on the mask alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import RegardError
from regard.reuse.heads import HeadJoin, Joining
from regard.reuse.source import Side, Source
from regard.softmax import product

#: Rows of weights belong to queries.
ROW_SIDES: tuple[Side, ...] = ("query", "self")
#: Key positions (batch, key) and their number (batch, 1), to a matrix (batch, key, cell).
Resampling = Callable[[Tensor, Tensor, int], Tensor]


def pooled(position: Tensor, count: Tensor, cells: int) -> Tensor:
    """The share of each key's part of the row in each cell: resampling keeps the sum of a row.

    >>> import torch
    >>> from regard.reuse import pooled
    >>> pooled(torch.arange(4.0)[None], torch.tensor([[4.0]]), 2)[0]
    tensor([[1., 0.],
            [1., 0.],
            [0., 1.],
            [0., 1.]])
    """
    size = (count / cells)[..., None]  # of a cell, in keys, (batch, 1, 1)
    cell = torch.arange(cells, device=position.device, dtype=position.dtype) * size
    end = cell + size  # (batch, 1, cell)
    start = position[..., None]
    return (torch.minimum(start + 1, end) - torch.maximum(start, cell)).clamp_min(0.0)


def interpolated(position: Tensor, count: Tensor, cells: int) -> Tensor:
    """The row as a curve, sampled at the middle of each cell, times keys / cells, so that rows of
    all lengths have the same scale."""
    middle = torch.arange(cells, device=position.device, dtype=position.dtype) + 0.5
    at = middle * (count / cells)[..., None] - 0.5  # measured in keys, (batch, 1, cell)
    at = at.clamp_min(0.0).minimum((count - 1)[..., None])
    near = (1 - (position[..., None] - at).abs()).clamp_min(0.0)
    return near * (count / cells)[..., None]


def resampler(source: Source, cells: int, resample: Resampling, dtype: torch.dtype) -> Tensor:
    """The matrix (batch or 1, key, cell) that resamples rows of weights."""
    if source.alive is None:
        alive = torch.ones(1, source.shape.keys, dtype=torch.bool, device=source.device)
    else:
        alive = source.alive.any(1).to(source.device)
    position = (alive.cumsum(1) - 1).to(dtype)
    count = alive.sum(1, keepdim=True).clamp_min(1).to(dtype)
    return resample(position, count, cells) * alive[..., None]


class ProjectedRows(nn.Module):
    """A learned projection of each query's rows, Σₕ (Aₕ R) Wₕ, with R the resampling to cells.

    Args:
        n_heads: number of heads of the weights.
        channels: channels of the output.
        side: "self", or "query" for cross-attention.
        cells: numbers that represent a row.
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
        check_sizes("ProjectedRows", n_heads=n_heads, channels=channels, cells=cells)
        self.n_heads, self.channels, self.side = n_heads, channels, row_side("ProjectedRows", side)
        self.cells, self.resample = cells, resample
        self.join = HeadJoin("ProjectedRows", heads, n_heads)
        self.table = nn.Parameter(torch.empty(self.join.maps, cells, channels))
        nn.init.normal_(self.table, std=self.join.maps**-0.5)

    def forward(self, source: Source) -> Tensor:
        """(batch, query, channels)."""
        weights = rows_of("ProjectedRows", source, self.n_heads, self.side, self.join)
        return through(weights, source, self.cells, self.resample, self.table).sum(1)

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"{self.cells} cells to {self.channels} channels"


def through(
    weights: Tensor, source: Source, cells: int, resample: Resampling, table: Tensor
) -> Tensor:
    """Resampled rows times a table (map, cell, channel): (batch, map, query, channel).

    The small product comes first: keys to channels, then the rows times it.
    """
    matrix = resampler(source, cells, resample, weights.dtype)
    codes = product(matrix[:, None], table.to(weights.dtype)[None])  # (batch or 1, map, key, …)
    return product(weights, codes)


def rows_of(owner: str, source: Source, n_heads: int, side: Side, join: HeadJoin) -> Tensor:
    """The checked and joined weights, (batch, map, query, key)."""
    source.check_heads(owner, n_heads)
    if side == "self":
        source.check_same_positions(owner, ROW_SIDES)
    joined: Tensor = join(source.weights(side))
    return joined


def row_side(owner: str, side: Side) -> Side:
    """The side of a code of rows; raises where it is none."""
    if side not in ROW_SIDES:
        raise RegardError(
            f"{owner}: side={side!r}, expected 'query' or 'self': rows of weights belong to queries"
        )
    return side
