"""The mean of what any reducer answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.corpus.batch import Batch
from regard.corpus.parts import Ratio
from regard.corpus.statistic import Attention, Parts, Statistic, snake_case
from regard.errors import RegardError
from regard.kernel.reduce import reduce
from regard.kernel.reducers.base import Reducer
from regard.recipe import Given


class Average(Statistic):
    """The mean over examples of a reducer's answer, whose size must not depend on the text.

    Padding never counts: where there is any, examples of one length are reduced together, without
    it, from the full weights of the batch.

    Args:
        reducer: such as `Histogram()`; it answers (batch, head, …), or (batch, …) across heads.
            `collect` makes an `Average` of a reducer that it is given.
        field: which tensor, by number, of an answer that is a tuple.
    """

    def __init__(self, reducer: Reducer, field: int | None = None) -> None:
        if not isinstance(reducer, Reducer):
            raise RegardError(f"Average: {reducer!r} is not a Reducer; pass an object: Histogram()")
        self.reducer, self.field = reducer, field

    @property
    def name(self) -> str:
        return snake_case(type(self.reducer).__name__)

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        return {"whole": self.reducer} if bool(batch.real.all()) else {}

    def start(self) -> Parts:
        return {"mean": Ratio()}

    def update(self, parts: Parts, attention: Attention) -> None:
        seen = attention.rows.any(2).cpu()  # (batch, head)
        if self.reducer.across_heads:
            seen = seen.any(1)
        for examples, answer in self._answers(attention):
            values = self._tensor(answer)
            number = seen[examples].view(*seen[examples].shape, *[1] * (values.dim() - seen.dim()))
            parts["mean"].add(values, number.double())

    def _answers(self, attention: Attention) -> Iterator[tuple[Any, Any]]:
        """Numbers of examples in the batch, and the answer about them."""
        if "whole" in attention.answers:
            yield slice(None), attention.answers["whole"]
            return
        weights, real = attention.recipe.detach().weights(), attention.batch.positions.keys
        lengths = real.sum(1)
        for length in lengths.unique().tolist():
            examples = (lengths == length).nonzero()[:, 0]
            if length:
                where = real[examples].nonzero()[:, 1].view(-1, length)  # (example, position)
                some = torch.arange(len(examples))[:, None, None]
                rows, columns = where[:, :, None], where[:, None]
                chosen = weights[examples.to(weights.device)].transpose(1, 3)  # (b, key, query, h)
                alone = chosen[some, columns, rows].permute(0, 3, 1, 2)
                recipe = Given(alone.contiguous(), None, attention.record.kind)
                yield examples, reduce(recipe, [self.reducer])[0]

    def _tensor(self, answer: Any) -> Tensor:
        if isinstance(answer, Tensor):
            return answer
        names = ", ".join(f"{i} {name}" for i, name in enumerate(getattr(answer, "_fields", ())))
        if self.field is None or not 0 <= self.field < len(answer):
            raise RegardError(
                f"Average: {type(self.reducer).__name__} answers {len(answer)} tensors"
                f"{f' ({names})' if names else ''}; say which, as Average(..., field=0)"
            )
        chosen: Tensor = answer[self.field]
        return chosen
