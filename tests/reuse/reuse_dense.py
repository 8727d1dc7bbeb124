"""The three ways in plain loops over float64 numbers, and inputs for all tests of them."""

import math

import torch
from torch import Tensor

from regard import masks


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def weights_of(batch: int = 2, heads: int = 3, queries: int = 5, keys: int = 5) -> Tensor:
    return normal(batch, heads, queries, keys).softmax(-1)


def padded_mask(batch: int, keys: int, real: int) -> masks.Mask:
    """All examples but the first have `real` keys."""
    keep = torch.ones(batch, keys, dtype=torch.bool)
    keep[1:, real:] = False
    return masks.padding(keep)


def mixed(matrix: Tensor, features: Tensor) -> Tensor:
    """One matrix times the features of one example, entry by entry."""
    out = torch.zeros(matrix.shape[0], features.shape[1], dtype=torch.float64)
    for query in range(matrix.shape[0]):
        for key in range(matrix.shape[1]):
            for column in range(features.shape[1]):
                out[query, column] += matrix[query, key] * features[key, column]
    return out


def received(matrix: Tensor) -> list[float]:
    rows, columns = matrix.shape
    return [math.log(1 + sum(float(matrix[i, j]) for i in range(rows))) for j in range(columns)]


def entropy(matrix: Tensor) -> list[float]:
    return [-sum(float(a) * math.log(a) for a in row if a > 0) for row in matrix]


def strongest(matrix: Tensor) -> list[float]:
    return [max((float(a) for a in row), default=0.0) for row in matrix]


def self_weight(matrix: Tensor) -> list[float]:
    return [float(matrix[i, i]) for i in range(len(matrix))]


SUMMARIES = {
    "received": received,
    "entropy": entropy,
    "strongest": strongest,
    "self_weight": self_weight,
}


def summaries(weights: Tensor, names: list[str]) -> Tensor:
    """(batch, position, summary · head)."""
    batch, heads = weights.shape[:2]
    found = [
        [SUMMARIES[name](weights[example, head]) for name in names for head in range(heads)]
        for example in range(batch)
    ]
    return torch.tensor(found, dtype=torch.float64).mT


def pooled(row: Tensor, cells: int) -> list[float]:
    """Mass of each cell of a row: every key covers 1/n of it."""
    n = len(row)
    found = [0.0] * cells
    for key in range(n):
        for cell in range(cells):
            start, end = max(key / n, cell / cells), min((key + 1) / n, (cell + 1) / cells)
            if end > start:
                found[cell] += float(row[key]) * (end - start) * n
    return found


def interpolated(row: Tensor, cells: int) -> list[float]:
    """A row as a curve through its entries, read at the middle of each cell, times n / cells."""
    n, found = len(row), []
    for cell in range(cells):
        at = min(max((cell + 0.5) * n / cells - 0.5, 0.0), n - 1.0)
        low = min(int(at), n - 2) if n > 1 else 0
        share = at - low
        value = float(row[low]) * (1 - share)
        if n > 1:
            value += float(row[low + 1]) * share
        found.append(value * n / cells)
    return found


def offset_mass(matrix: Tensor, starts: list[int], shift: int) -> Tensor:
    """Mass by bin of key − query offset, (query, bin)."""
    found = torch.zeros(matrix.shape[0], len(starts) + 1, dtype=torch.float64)
    for query in range(matrix.shape[0]):
        for key in range(matrix.shape[1]):
            offset = key - (query + shift)
            found[query, sum(offset >= start for start in starts)] += matrix[query, key]
    return found
