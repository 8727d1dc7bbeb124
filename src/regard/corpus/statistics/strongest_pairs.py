"""The examples in which each head is strongest, with their text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from regard.corpus.batch import Batch
from regard.corpus.parts import Strongest
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.kernel.reducers.base import Matrix, Reducer

_NONE = -1.0  # below any weight of a pair


class StrongestPairs(Statistic):
    """For each head the examples with the largest weight of a pair, exactly: a list of `Strong`.

    The key is neither the query itself nor the first token nor a special one, where most heads rest
    in every text. Weights are told apart in steps of 10⁻⁶; of equals the first one counts.

    Args:
        k: how many examples for each head.
    """

    def __init__(self, k: int = 5) -> None:
        Strongest(k)  # refuses what is no number of examples
        self.k = k

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        return {"pair": _LargestPair(batch.positions.rows, batch.positions.ordinary)}

    def start(self) -> Parts:
        return {"examples": Strongest(self.k)}

    def update(self, parts: Parts, attention: Attention) -> None:
        weight, place = attention.answers["pair"]  # (batch, head)
        keys = attention.record.shape.keys
        pairs = torch.stack([place // keys, place % keys], 2).cpu().flatten(1)
        among_real = attention.batch.positions.keys.cumsum(1) - 1  # (batch, position)
        parts["examples"].add(
            torch.where(weight > 0, weight, -torch.inf),
            among_real.gather(1, pairs).unflatten(1, (-1, 2)),
            attention.batch.numbers,
            attention.batch.shown,
        )


class _LargestPair(Reducer):
    """The largest weight of two different positions, and query · keys + key of the pair."""

    needs_log_weights = False
    stackable = True

    def __init__(self, rows: Bool[Tensor, "batch query"], keys: Bool[Tensor, "batch key"]) -> None:
        super().__init__()
        self.rows, self.keys = rows, keys

    def start(self, matrix: Matrix) -> None:
        self.left = matrix.own(self.rows).to(matrix.device)
        self.right = matrix.own(self.keys).to(matrix.device, matrix.dtype)
        self.weight = matrix.zeros() + _NONE
        self.place = torch.zeros_like(self.weight, dtype=torch.long)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        pairs = weights * self.right[..., None, columns]
        pairs.diagonal(rows.start - columns.start, -2, -1).zero_()
        largest, row = torch.where(self.left[..., rows], pairs.amax(-1), 0.0).max(-1)
        column = pairs.take_along_dim(row[..., None, None], -2).argmax(-1)[..., 0]
        query, key = rows.start + row, columns.start + column
        self._take(largest, query * self.matrix.keys + key)

    def _take(self, weight: Tensor, place: Tensor) -> None:
        better = weight > self.weight
        self.place = torch.where(better, place, self.place)
        self.weight = torch.where(better, weight, self.weight)

    def merge(self, other: Any) -> None:
        self._take(other.weight, other.place)

    def result(self) -> tuple[Tensor, Tensor]:
        return self.weight, self.place
