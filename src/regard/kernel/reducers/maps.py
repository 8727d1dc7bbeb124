"""Whole maps: over the heads, or everything."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from regard.kernel.reducers.base import Matrix, Reducer, Sum
from regard.recipe import Recipe
from regard.softmax import exp
from regard.types import NEVER, Kind


class HeadMean(Sum):
    """Mean over the heads, (batch, query, key)."""

    across_heads = True
    needs_log_weights = False
    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.total = matrix.zeros(matrix.queries, matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., rows, columns].add_(weights)

    def fork(self) -> HeadMean:
        return copy.copy(self)  # other rows of the same map: no second map is needed

    def merge(self, other: Any) -> None:
        if other.total is not self.total:
            super().merge(other)

    def result(self) -> Tensor:
        return self.total.div_(self.matrix.heads)


class HeadMax(Reducer):
    """Largest weight over the heads, (batch, query, key)."""

    across_heads = True
    needs_weights = False
    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.largest = matrix.full(matrix.queries, matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert log_weights is not None
        seen = self.largest[..., rows, columns]
        if torch.is_grad_enabled():
            self.largest[..., rows, columns] = torch.maximum(seen.clone(), log_weights)
        else:
            torch.maximum(seen, log_weights, out=seen)

    def fork(self) -> HeadMax:
        return copy.copy(self)

    def merge(self, other: Any) -> None:
        if other.largest is not self.largest:
            self.largest = torch.maximum(self.largest, other.largest)

    def result(self) -> Tensor:
        if self.differentiable:
            return exp(self.largest) * (self.largest > NEVER / 2)
        forbidden = self.largest <= NEVER / 2
        return exp(self.largest, out=self.largest).masked_fill_(forbidden, 0.0)

    def suited(self, kind: Kind) -> Reducer:
        without_logs = kind in ("signed", "gate")
        return _LargestOfAnySign(differentiable=self.differentiable) if without_logs else self


class HeadMin(Reducer):
    """Smallest weight over the heads, (batch, query, key)."""

    across_heads = True
    needs_log_weights = False
    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.smallest = matrix.zeros(matrix.queries, matrix.keys).add_(math.inf)
        self.shown = torch.zeros_like(self.smallest, dtype=torch.int16)  # a head may see less

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        seen = self.smallest[..., rows, columns]
        self.shown[..., rows, columns] += 1
        if torch.is_grad_enabled():
            self.smallest[..., rows, columns] = torch.minimum(seen.clone(), weights)
        else:
            torch.minimum(seen, weights, out=seen)

    def fork(self) -> HeadMin:
        return copy.copy(self)

    def merge(self, other: Any) -> None:
        if other.smallest is not self.smallest:
            self.smallest = torch.minimum(self.smallest, other.smallest)
            self.shown = self.shown + other.shown

    def result(self) -> Tensor:
        unseen = self.shown < self.matrix.heads  # by some head: its weight there is 0
        return torch.where(unseen, self.smallest.clamp_max(0.0), self.smallest)


class _LargestOfAnySign(HeadMin):
    """`HeadMax` of weights that have no logarithm: the smallest of their opposites."""

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        super().tile(rows, columns, log_weights, -weights)

    def result(self) -> Tensor:
        return -super().result()


class FullWeights(Sum):
    """Everything, (batch, head, query, key): the full matrix, because it was asked for."""

    needs_log_weights = False
    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.total = matrix.zeros(matrix.queries, matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., rows, columns].add_(weights)

    def shortcut(self, recipe: Recipe) -> Any:
        return recipe.weights()
