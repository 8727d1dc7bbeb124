"""Attention between categories of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from regard.corpus.batch import Batch
from regard.corpus.estimates import Estimate
from regard.corpus.parts import Ratio
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.errors import RegardError
from regard.kernel.reducers import SegmentWeights
from regard.kernel.reducers.base import Reducer


@dataclass(frozen=True, eq=False)
class CategoryWeights:
    """Weights between categories; each is a mean over queries."""

    categories: list[str]
    between: Estimate  #: from a query of a category to keys of another, (head, from, to)
    received: Estimate  #: from any query to keys of a category, (head, to)


class CoAttention(Statistic):
    """Mean weight that queries of each category give keys of each, and that each receives.

    Args:
        categories: their words, in the order of the numbers in the label.
        label: a label of whole numbers, one for each position; padding may have any.
    """

    def __init__(self, categories: Sequence[str], label: str = "category") -> None:
        if isinstance(categories, str) or not categories:
            raise RegardError(f"CoAttention: {categories!r}, expected a list of categories")
        self.categories, self.label = list(categories), label

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        number = len(self.categories)
        label, real = batch.label(self.label, "CoAttention"), batch.positions.keys
        if bool((real & ((label < 0) | (label >= number))).any()):
            raise RegardError(
                f"CoAttention: label {self.label!r} has numbers from {int(label[real].min())} to "
                f"{int(label[real].max())}, expected 0 to {number - 1}, for the categories "
                f"{', '.join(self.categories)}"
            )
        # Padding is a category of its own, which is dropped.
        return {"weights": SegmentWeights(torch.where(real, label.long(), number), number + 1)}

    def start(self) -> Parts:
        return {"between": Ratio(), "received": Ratio()}

    def update(self, parts: Parts, attention: Attention) -> None:
        weights = attention.answers["weights"][..., :-1].cpu().double()
        label = attention.batch.label(self.label, "CoAttention").long()
        number, rows = len(self.categories), attention.rows.double()
        of_query = F.one_hot(label.clamp(0, number - 1), number).double()  # (batch, query, from)
        counted = torch.einsum("bqc,bhq->bhc", of_query, rows)
        between = torch.einsum("bqc,bhq,bhqk->bhck", of_query, rows, weights)
        parts["between"].add(between, counted[..., None])
        parts["received"].add(between.sum(2), counted.sum(2, keepdim=True))

    def result(self, parts: Parts) -> CategoryWeights:
        return CategoryWeights(self.categories, **super().result(parts))
