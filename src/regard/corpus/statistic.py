"""The Statistic contract: what may be added up over a corpus.

>>> import torch, regard
>>> class LateKeys(regard.Statistic):
...     "Weight on the second half of each text."
...     def asks(self, batch):
...         length = batch.real.sum(1, keepdim=True)
...         late = torch.arange(batch.real.shape[1]) >= length / 2
...         return {"late": regard.WeightedSum(late[:, None, None].float())}
...     def start(self):
...         return {"share": Mean()}
...     def update(self, parts, attention):
...         parts["share"].add(attention.answers["late"][:, :, 0], attention.rows)
>>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
>>> batch = Batch((torch.randn(3, 6, 8),), real=torch.ones(3, 6, dtype=torch.bool))
>>> found = regard.collect(model, [batch], [LateKeys()])
>>> found["late_keys"]["self_attn"].mean.shape
torch.Size([2])
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from regard.aggregate.statistics.head_sums import RowSums
from regard.corpus.batch import Batch
from regard.corpus.parts import Mean
from regard.kernel.reducers.base import Reducer
from regard.recipe import Recipe
from regard.record import Record

__all__ = ["Attention", "Batch", "Mean", "Parts", "Statistic"]

Parts = dict[str, Any]  #: objects of `Part` by name


@dataclass(frozen=True, eq=False)
class Attention:
    """One attention of a batch, as a statistic sees it."""

    record: Record
    batch: Batch
    answers: Mapping[str, Any]  #: to what this statistic asked, under its names
    rows: Bool[Tensor, "batch head query"]  #: queries that count: real, and attend to something

    row_sums: RowSums  #: made of those answers that are to `batch.questions.reducers`

    @property
    def recipe(self) -> Recipe:
        """What the weights are made from; those of padding are zeros where they were not finite."""
        return self.row_sums.recipe


class Statistic(ABC):
    """Adds up, over a corpus, what reducers answer about one attention at a time.

    A statistic keeps nothing itself. For each attention of the model `start` makes the parts in
    which it adds up, and `update` adds a batch to them; merging and saving are the parts'. So its
    answer has a fixed size and does not depend on order, batches or how a corpus was split.
    Attributes are settings; those that JSON can write are saved.
    """

    @property
    def name(self) -> str:
        """Its name among others: that of the class, as `late_keys`."""
        return snake_case(type(self).__name__)

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        """Reducers whose answers `update` needs. All statistics share one walk over the weights,
        and those that ask the same object share its answer."""
        return {}

    @abstractmethod
    def start(self) -> Parts:
        """Parts for one attention, by name."""

    @abstractmethod
    def update(self, parts: Parts, attention: Attention) -> None:
        """Add one attention of one batch."""

    def result(self, parts: Parts) -> Any:
        """The answer about one attention: that of the part, or by name where there are several."""
        results = {name: part.result() for name, part in parts.items()}
        return next(iter(results.values())) if len(results) == 1 else results

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in settings_of(self).items())
        return f"{type(self).__name__}({settings})"


def settings_of(statistic: Statistic) -> dict[str, Any]:
    """Its attributes, without those that are its own business."""
    return {name: value for name, value in vars(statistic).items() if name[0] != "_"}


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
