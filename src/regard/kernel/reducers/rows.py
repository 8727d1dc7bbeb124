"""What can be said of each row: its entropy, support, strongest keys, the row itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.kernel.reducers.base import Matrix, Reducer, Sum
from regard.recipe import Recipe
from regard.softmax import exp
from regard.types import NEVER


class Entropy(Sum):
    """Entropy of each row in nats, (batch, head, query): −Σⱼ Aᵢⱼ log Aᵢⱼ."""

    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.total = matrix.zeros(matrix.queries)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None and log_weights is not None
        self.total[..., rows].sub_((weights * log_weights).sum(-1))

    def last_tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None and log_weights is not None
        self.total[..., rows].sub_(log_weights.mul_(weights).sum(-1))


class KeyCounts(NamedTuple):
    """How many keys a row rests on."""

    above: Float[Tensor, "batch head query"]  #: keys whose weight is above the threshold
    effective: Float[
        Tensor, "batch head query"
    ]  #: 1 / Σⱼ Aᵢⱼ²; 0 for a row that attends to nothing


class EffectiveKeys(Reducer):
    """How many keys a row rests on, as `KeyCounts`: above a threshold, and effectively."""

    stackable = True

    def __init__(self, threshold: float = 0.01, *, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        if not 0.0 < threshold < 1.0:
            raise RegardError(f"EffectiveKeys: threshold={threshold}, expected between 0 and 1")
        self.threshold = threshold

    def start(self, matrix: Matrix) -> None:
        self.count, self.squares = matrix.zeros(matrix.queries), matrix.zeros(matrix.queries)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None and log_weights is not None
        self.count[..., rows] += (log_weights > math.log(self.threshold)).to(weights.dtype).sum(-1)
        self.squares[..., rows] += (weights * weights).sum(-1)

    def merge(self, other: Any) -> None:
        self.count, self.squares = self.count + other.count, self.squares + other.squares

    def result(self) -> KeyCounts:
        some = self.squares > 0
        return KeyCounts(self.count, some / torch.where(some, self.squares, 1.0))


class TopKeys(NamedTuple):
    """The strongest keys of each row, strongest first; weight 0 where fewer may be attended."""

    weights: Float[Tensor, "batch head query k"]
    keys: Int[Tensor, "batch head query k"]


class TopK(Reducer):
    """The `k` strongest keys of each row and their weights, as `TopKeys`.

    The k largest entries lie in the k groups of columns with the largest maxima: a row is cut
    into groups, and only the entries of those k groups are sorted.

    Signed weights are refused: whether −2 is stronger than 1 is for the asker to say. Take
    `weights().topk(k)`, or `weights().abs().topk(k)`.
    """

    needs_weights = False
    whole_rows = True
    stackable = True

    def __init__(self, k: int, *, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        if k < 1:
            raise RegardError(f"TopK: k={k}, expected at least 1")
        self.k = k

    def start(self, matrix: Matrix) -> None:
        if self.k > matrix.keys:
            raise RegardError(f"TopK: k={self.k}, but there are only {matrix.keys} keys")
        self.values = matrix.full(matrix.queries, self.k)
        self.positions = torch.zeros_like(self.values, dtype=torch.long)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert log_weights is not None
        values, positions = _strongest(log_weights, self.k)
        self._take(rows, values, positions + columns.start)

    def _take(self, rows: slice, values: Tensor, positions: Tensor) -> None:
        if values.shape[-1] == self.k and bool((self.values[..., rows, 0] <= NEVER).all()):
            self.values[..., rows, :], self.positions[..., rows, :] = values, positions
            return  # there was nothing to compete with
        both = torch.cat([self.values[..., rows, :], values], dim=-1)
        where = torch.cat([self.positions[..., rows, :], positions], dim=-1)
        best = both.topk(self.k)
        self.values[..., rows, :] = best.values
        self.positions[..., rows, :] = where.gather(-1, best.indices)

    def merge(self, other: Any) -> None:
        self._take(slice(0, self.matrix.queries), other.values, other.positions)

    def result(self) -> TopKeys:
        return TopKeys(
            _weights(self.values), self.positions.masked_fill(self.values <= NEVER / 2, 0)
        )


class QueryRows(Sum):
    """The full rows of named queries, (batch, head, row, key); -1 is the last query."""

    needs_log_weights = False
    stackable = True

    def __init__(self, queries: Sequence[int], *, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        if isinstance(queries, int):
            raise RegardError(f"QueryRows: {queries}, expected a list of queries, as [{queries}]")
        self.queries = list(queries)

    def start(self, matrix: Matrix) -> None:
        self.rows = self._rows(matrix.queries)
        self.total = matrix.zeros(len(self.rows), matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        for index, row in enumerate(self.rows):
            if rows.start <= row < rows.stop:
                self.total[..., index, columns] += weights[..., row - rows.start, :]

    def shortcut(self, recipe: Recipe) -> Any:
        rows = self._rows(recipe.shape.queries)
        weights = [recipe.weights(slice(row, row + 1)) for row in rows]
        return torch.cat(weights, dim=2) if weights else recipe.weights(slice(0, 0))

    def _rows(self, queries: int) -> list[int]:
        for query in self.queries:
            if not -queries <= query < queries:
                raise RegardError(f"QueryRows: query {query} is outside the {queries} queries")
        return [query % queries for query in self.queries]


class Histogram(Sum):
    """Counts of permitted weights in equal bins, (batch, head, bin): of log₁₀ weight, or of weight.

    Args:
        bins: how many.
        low: lower end of the axis, log₁₀ weight; the upper end is 0 (weight 1). Smaller weights
            fall into the first bin. None bins the weight itself from 0 to 1.
    """

    stackable = True

    def __init__(self, bins: int = 40, low: float | None = -8.0) -> None:
        super().__init__()
        if bins < 1 or (low is not None and low >= 0):
            raise RegardError(f"Histogram: bins={bins}, low={low}; expected bins >= 1, low < 0")
        self.bins, self.low = bins, low

    def start(self, matrix: Matrix) -> None:
        self.total = matrix.zeros(self.bins).long()

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None and log_weights is not None
        permitted = log_weights > NEVER / 2
        if self.low is None:
            bin_index = weights[permitted] * self.bins
        else:
            bin_index = (log_weights[permitted] / math.log(10) - self.low) / -self.low * self.bins
        bin_index = bin_index.floor().clamp(0, self.bins - 1).long()
        first_bins = torch.arange(0, self.total.numel(), self.bins, device=permitted.device)
        first_bins = first_bins.view(*self.matrix.stacked, 1, 1).expand_as(permitted)
        bin_index += first_bins[permitted]
        counts = torch.bincount(bin_index, minlength=self.total.numel())
        self.total += counts.view_as(self.total)


def _strongest(band: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of each row and their columns, by maxima of strided groups."""
    columns = band.shape[-1]
    k = min(k, columns)
    size = columns // (64 * k)  # of 64 k numbers or more torch selects by a heap, twice as fast
    if size < 2:  # too short to be worth grouping
        best = band.topk(k)
        return best.values, best.indices
    groups = columns // size
    leaders = band[..., : size * groups].unflatten(-1, (size, groups)).amax(-2)
    leaders = leaders.topk(k, sorted=False).indices  # (…, row, k)
    steps = torch.arange(size, device=band.device) * groups
    positions = (leaders[..., None] + steps).flatten(-2)  # (…, row, k · size)
    rest = torch.arange(size * groups, columns, device=band.device)
    positions = torch.cat([positions, rest.expand(*band.shape[:-1], -1)], dim=-1)
    best = band.gather(-1, positions).topk(k)
    return best.values, positions.gather(-1, best.indices)


def _weights(logs: Tensor) -> Tensor:
    return exp(logs) * (logs > NEVER / 2)
