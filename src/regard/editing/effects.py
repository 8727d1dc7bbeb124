"""What changes of attention do to a number: a table of effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.record.table import text_table


class Effect(NamedTuple):
    """One entry of a table of effects."""

    row: str
    column: str | int  #: a number if it is a head or a position
    value: float


@dataclass(frozen=True, eq=False, repr=False)
class Effects:
    """The effect of a change at each place, as a table; `regard.plots.effects` draws it.

    `reference` is the metric without a change; `target`, where there is one, that of the clean run:
    then an effect of 1 brings the metric back to it, and 0 does nothing. Without a target an effect
    is the difference from the reference.
    """

    values: Float[Tensor, "row column"]
    rows: Sequence[str]
    columns: Sequence[str] | Sequence[int]
    row_title: str
    column_title: str
    reference: float
    target: float | None = None

    def top(self, count: int = 5) -> list[Effect]:
        """The entries with the largest effects, by size."""
        order = self.values.abs().flatten().argsort(descending=True)[:count]
        width = len(self.columns)
        return [
            Effect(
                self.rows[number // width],
                self.columns[number % width],
                float(self.values[number // width, number % width]),
            )
            for number in order.tolist()
        ]

    def __getitem__(self, index: tuple[str | int, str | int]) -> float:
        """One effect, by names or numbers of its row and column."""
        row, column = index
        row = self.rows.index(row) if isinstance(row, str) else row
        column = self.columns.index(column) if isinstance(column, str) else column
        return float(self.values[row, column])

    def __repr__(self) -> str:
        head = f"metric {self.reference:.4g}"
        if self.target is not None:
            head += f", clean {self.target:.4g}; effect 1 restores the clean run"
        else:
            head += "; an effect is the difference from it"
        corner = f"{self.row_title} \\ {self.column_title}"
        lines = [
            (name, *(f"{value:+.3f}" for value in row))
            for name, row in zip(self.rows, self.values.tolist())
        ]
        columns = [str(column) for column in self.columns]
        table = text_table([(corner, *columns), *lines], right=columns)
        return f"{head}\n{table}"


def effects_of(values: list[list[float]]) -> Float[Tensor, "row column"]:
    """The table of measured effects."""
    return torch.tensor(values, dtype=torch.float64)
