"""How far apart rows are: of the heads of one attention, and of two models."""

from __future__ import annotations

import torch
from torch import nn

from regard.aggregate.statistics.head_divergence import divergence_of, divergence_sums
from regard.anatomy.modes import evaluation_mode
from regard.corpus.batch import Batch
from regard.corpus.parts import Mean, Ratio
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.errors import RegardError
from regard.heads.passes import run_on
from regard.record import Record
from regard.tracing import capture


class Agreement(Statistic):
    """Jensen–Shannon divergence between the heads of an attention, two by two: an `Estimate` of
    (head, head), in nats; 0 for equal rows, at most ln 2. NaN up to the diagonal.

    It takes queries × keys logarithms for each pair of heads, about as long as a forward pass.
    """

    def start(self) -> Parts:
        return {"divergence": Ratio()}

    def update(self, parts: Parts, attention: Attention) -> None:
        rows = attention.batch.positions.rows
        parts["divergence"].add(*divergence_sums([attention.recipe], rows))


class Drift(Statistic):
    """Jensen–Shannon divergence between the rows of each head and those of the same head in another
    model, such as an earlier checkpoint: an `Estimate` of (head,), in nats.

    The other model reads every batch too.

    Args:
        reference: a model with the same attentions over the same positions.
    """

    def __init__(self, reference: nn.Module) -> None:
        self.reference = reference
        self._seen: tuple[Batch | None, dict[str, Record]] = (None, {})

    def start(self) -> Parts:
        return {"divergence": Mean()}

    def update(self, parts: Parts, attention: Attention) -> None:
        record = attention.record
        other = self._records(attention.batch).get(record.name)
        if other is None or other.shape != record.shape:
            seen = "none of this name" if other is None else f"one of {tuple(other.shape)}"
            raise RegardError(
                f"Drift: {record.name} is an attention {tuple(record.shape)}, the reference has "
                f"{seen}; expected a model of the same architecture"
            )
        divergence = divergence_of(attention.recipe, other.recipe)
        parts["divergence"].add(divergence, attention.rows)

    def _records(self, batch: Batch) -> dict[str, Record]:
        """The attentions of the reference on a batch."""
        if self._seen[0] is not batch:
            with (
                evaluation_mode(self.reference),
                torch.inference_mode(),
                capture(self.reference) as trace,
            ):
                run_on(self.reference, batch.inputs)
            self._seen = batch, {record.name: record for record in trace}
        return self._seen[1]
