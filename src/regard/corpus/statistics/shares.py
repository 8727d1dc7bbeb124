"""The share of attention that goes to marked keys, or stays within a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from regard.corpus.batch import Batch
from regard.corpus.estimates import Estimate
from regard.corpus.parts import Mean
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.errors import RegardError
from regard.kernel.reducers import OwnSegment, WeightedSum
from regard.kernel.reducers.base import Reducer


class Shares(Statistic):
    """Weight on what labels tell of keys, as an `Estimate` for each label.

    Of booleans it is the weight on the keys that they mark (punctuation, say). Of whole numbers it
    is the weight on keys with the query's own number (the same word, sentence or speaker), itself
    included; queries with a negative number have no segment and do not count.

    Args:
        labels: their names; at least one.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        if isinstance(labels, str) or not labels:
            raise RegardError(f"Shares: labels={labels!r}, expected a list, as ['punctuation']")
        self.labels = list(labels)

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        reducers: dict[str, Reducer] = {}
        for name in self.labels:
            label = batch.label(name, "Shares")
            if label.dtype == torch.bool:
                reducers[name] = WeightedSum((label & batch.positions.keys)[:, None, None].float())
            else:
                reducers[name] = OwnSegment(torch.where(batch.positions.keys, label, -1))
        return reducers

    def start(self) -> Parts:
        return {name: Mean() for name in self.labels}

    def update(self, parts: Parts, attention: Attention) -> None:
        for name in self.labels:
            answer, rows = attention.answers[name], attention.rows
            label = attention.batch.label(name, "Shares")
            if label.dtype == torch.bool:
                parts[name].add(answer[:, :, 0], rows)
            else:
                parts[name].add(answer, rows & (label >= 0)[:, None])

    def result(self, parts: Parts) -> dict[str, Estimate]:
        return {name: part.result() for name, part in parts.items()}
