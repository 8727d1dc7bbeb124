"""One table of all heads: what type each one is, and the figures behind it.

>>> import torch
>>> from regard.aggregate.statistics.report import Report
>>> before = torch.eye(20).roll(-1, 1)  # each query looks at the key before it
>>> weights = torch.stack([before, before.T, torch.full((20, 20), 1 / 20)])[None]
>>> [row.type for row in Report.of(weights)]
['previous', 'next', 'broad']
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.aggregate.sources import Layer, check_one_pass, has_both, has_shares, layers_of
from regard.aggregate.statistics.head_statistics import (
    FIGURES,
    HeadStatistics,
    is_guess,
    layer_numbers,
    statistics_of,
)
from regard.aggregate.statistics.head_types import (
    NAMES,
    REPEATS,
    TYPES,
    WITH_SINK,
    HeadTypes,
    head_types,
)
from regard.errors import RegardError
from regard.recipe import Edges
from regard.record import Trace, forms
from regard.record.table import html_list, html_table, text_table
from regard.types import Kind

_SHORT = 40  # heads up to which every one is printed
_FEW = 3  # heads of each type printed of a longer report
_HEADINGS = {
    "evenness": "even",
    "effective": "keys",
    "distance": "dist",
    "spread": "±",
    "itself": "self",
    "previous": "prev",
    "special": "spec",
    "induction": "induc",
    "duplicate": "dupl",
    "positional": "posit",
}


@dataclass(frozen=True)
class HeadRow:
    """One head: where it is, its type in one word, and its figures; NaN where there is none."""

    layer: int
    head: int
    name: str  #: the site, as in the trace
    type: str
    with_sink: bool  #: whether the type is of what does not go to a sink
    entropy: float
    evenness: float
    effective: float
    distance: float
    spread: float
    itself: float
    previous: float
    next: float
    sink: float
    special: float
    local: float
    peak: float
    induction: float
    duplicate: float
    positional: float
    aside: float

    @property
    def label(self) -> str:
        """The type, and whether there is a sink beside it: "induction, with a sink"."""
        return f"{self.type}, {WITH_SINK}" if self.with_sink else self.type


class Report:
    """All heads, lowest layer first; iterating gives a `HeadRow` for each.

    `report[18, 6]` is layer 18, head 6. Printed, a long report is a grid of types and the
    clearest heads of each; `table()` has all of them.
    """

    def __init__(
        self, rows: Sequence[HeadRow], *, notes: Sequence[str] = (), sites: bool = False
    ) -> None:
        self.rows = list(rows)
        self.notes = list(notes)  #: which figures are missing, and why
        self._sites = sites  # whether sites are printed, as numbers alone would not tell them apart

    @classmethod
    def of(
        cls,
        attention: Any,
        *,
        tokens: Any = None,
        real: Any = None,
        special: Any = None,
        window: int = 4,
        part: str | None = None,
        cross: bool | None = None,
        axes: str | None = None,
        kind: Kind = "distribution",
    ) -> Report:
        """The report of a trace, a record or tensors; arguments are those of `head_statistics`.

        Layers of signed weights or gates are left out, with a note, unless there are no others:
        the figures are of shares. The trace of an encoder–decoder model is reported whole. Tokens,
        real and special belong to one sequence, so they need `part`.
        """
        marks = {"tokens": tokens, "real": real, "special": special}
        names = [name for name, value in marks.items() if value is not None]
        every = _layers(attention, part, names, axes=axes, kind=kind)
        layers = [layer for layer in every if has_shares(layer)] or every
        statistics = [statistics_of(layer, window, cross, **marks) for layer in layers]
        every_number, sites = layer_numbers(every)
        numbers = [number for number, layer in zip(every_number, every) if has_shares(layer)]
        rows = [
            row for number, figures in zip(numbers, statistics) for row in _rows(number, figures)
        ]
        notes = [*_notes(statistics, layers), *_layer_notes(every, cross)]
        return cls(rows, notes=notes, sites=sites)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadRow]:
        return iter(self.rows)

    def __getitem__(self, where: Any) -> Any:
        """A row by index, some by a slice, or one by (layer, head)."""
        if not isinstance(where, tuple):
            return self.rows[where]
        for row in self.rows:
            if (row.layer, row.head) == where:
                return row
        layers = sorted({row.layer for row in self.rows})
        raise KeyError(f"no (layer, head) {where}; there are layers {layers}")

    def heads(self, type: str) -> list[HeadRow]:
        """All heads of a type, the clearest first."""
        if type not in TYPES:
            raise RegardError(f"type={type!r}, expected one of {', '.join(TYPES)}")
        heads = [row for row in self.rows if row.type == type]
        return _ranked(heads, TYPES[type].figure, TYPES[type].least)

    def best(self, figure: str, number: int = 5) -> list[HeadRow]:
        """The heads with the highest value of a figure, of any type; "self" is `itself`."""
        wanted = {"self": "itself", "broad": "evenness"}.get(figure, figure)
        if wanted not in FIGURES:
            raise RegardError(f"best: {figure!r}, expected one of self, {', '.join(FIGURES)}")
        rows = [row for row in self.rows if not math.isnan(getattr(row, wanted))]
        if self.rows and not rows:
            raise RegardError(f"best: no head has {figure!r}. {'. '.join(self.notes)}")
        return _ranked(rows, wanted)[:number]

    def counts(self) -> dict[str, int]:
        """How many heads there are of each type, most first."""
        types = [row.type for row in self.rows]
        counted = {name: types.count(name) for name in TYPES if name in types}
        return dict(sorted(counted.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name, as `pandas.DataFrame` takes them."""
        rows = [asdict(row) for row in self.rows]
        return {field.name: [row[field.name] for row in rows] for field in fields(HeadRow)}

    def table(self, rows: Sequence[HeadRow] | None = None) -> str:
        """A line for each head, all of them or some."""
        head, *body = self._cells(self.rows if rows is None else rows)
        headings = [_HEADINGS.get(name, name) for name in head]
        return text_table([headings, *body], right={*headings} - {"site", "type"})

    def __repr__(self) -> str:
        if not self.rows:
            return "Report of no heads"
        if len(self.rows) <= _SHORT:
            return "\n".join([self._title(), self._legend(signs=False), self.table(), *self.notes])
        named = [type for type in TYPES if type != "mixed"]
        clearest = [row for type in named for row in self.heads(type)[:_FEW]]
        hint = (
            f"the clearest of each type, {len(clearest)} of {len(self.rows)} heads; "
            "report.table() has all, report.heads('sink') those of a type"
        )
        shown = [self._title(), self._legend(), "", self._grid(), ""]
        shown += [self.table(clearest), hint] if clearest else [hint]
        return "\n".join([*shown, *self.notes])

    def _repr_html_(self) -> str:
        if not self.rows:
            return "<p>Report of no heads</p>"
        table = html_table(self._cells(self.rows))
        return (
            f"<p>{escape(self._title())}<br>{escape(self._legend(signs=False))}</p>"
            f'<div style="max-height: 30em; overflow: auto">{table}</div>{html_list(self.notes)}'
        )

    def _title(self) -> str:
        calls = {row.name for row in self.rows}
        layers = {name.partition("#")[0] for name in calls}
        repeated = f"{len(calls)} calls of " if len(calls) > len(layers) else ""
        heads = f"{len(self.rows)} head{'s' * (len(self.rows) != 1)}"
        return f"Report of {heads} in {repeated}{len(layers)} layer{'s' * (len(layers) != 1)}"

    def _legend(self, signs: bool = True) -> str:
        """How many heads there are of each type."""
        entries = [
            f"{TYPES[name].sign + ' ' if signs else ''}{name} {count}"
            for name, count in self.counts().items()
        ]
        return textwrap.fill(", ".join(entries), 100)

    def _grid(self) -> str:
        """A sign for each head, a line for each layer."""
        lines: dict[int, list[str]] = {}
        for row in self.rows:
            lines.setdefault(row.layer, []).append(TYPES[row.type].sign)
        most = max(len(signs) for signs in lines.values())
        head = f"layer  {' '.join(str(head % 10) for head in range(most))}"
        return "\n".join([head, *(f"{n:>5}  {' '.join(signs)}" for n, signs in lines.items())])

    def _cells(self, rows: Sequence[HeadRow]) -> list[list[str]]:
        """The table as words: the headings, then a line for each row."""
        shown = [
            name for name in FIGURES if not all(math.isnan(getattr(row, name)) for row in self.rows)
        ]
        head = ["layer", "head", *(["site"] if self._sites else []), "type"]
        lines = [[*head, *shown]]
        for row in rows:
            where = [str(row.layer), str(row.head), *([row.name] if self._sites else []), row.label]
            lines.append([*where, *(_number(name, getattr(row, name)) for name in shown)])
        return lines


def head_rows(statistics: HeadStatistics) -> list[HeadRow]:
    """A row for each head of a layer."""
    return list(_rows(0, statistics))


def _layers(attention: Any, part: str | None, names: list[str], **options: Any) -> list[Layer]:
    if not isinstance(attention, Trace) or part is not None:
        return layers_of(attention, part=part, **options)
    attention = Trace(forms.attending(attention))
    if not has_both(attention):
        layers = layers_of(attention, **options)
        sizes = {layer.recipe.shape.keys for layer in layers}
        if len(sizes) > 1 and {"tokens", "real"} & set(names):
            raise RegardError(
                f"{', '.join(names)}: of which sequence? Layers have {sorted(sizes)} keys; report "
                f"those of one, as regard.Trace([r for r in trace if r.shape.keys == {max(sizes)}])"
            )
        return layers
    if names:
        raise RegardError(
            f"{', '.join(names)}: of which sequence? The trace has self- and cross-attention; say "
            + forms.parts(list(attention))
        )
    check_one_pass(attention)
    return layers_of(list(attention), **options)


def rows_of(
    layer: int, name: str, types: HeadTypes, figures: Mapping[str, Float[Tensor, " head"]]
) -> Iterator[HeadRow]:
    """A row for each head of a layer."""
    columns = {figure: figures[figure].tolist() for figure in FIGURES}
    for head, (number, with_sink) in enumerate(zip(*(column.tolist() for column in types))):
        own = {figure: column[head] for figure, column in columns.items()}
        yield HeadRow(layer, head, name, NAMES[number], with_sink, **own)


def _rows(layer: int, statistics: HeadStatistics) -> Iterator[HeadRow]:
    figures = {name: getattr(statistics, name) for name in FIGURES}
    types = head_types(figures, statistics.repeats, statistics.rest)
    return rows_of(layer, statistics.name, types, figures)


def _notes(statistics: Sequence[HeadStatistics], layers: Sequence[Layer]) -> list[str]:
    """Which figures are missing, and why."""
    graphs = [
        layer.name
        for layer, figures in zip(layers, statistics)
        if isinstance(layer.recipe, Edges)
        and layer.recipe.grid is None
        and bool(figures.sink.isnan().all())
    ]
    notes = []
    if graphs:
        notes.append(
            f"{_first_of(graphs)}: edges, maybe of a graph, whose nodes have no order: there is no "
            "previous, next, first or distance; tokens= says that it is a sequence"
        )
    if all(figures.offsets is None for figures in statistics):
        cross = "queries and keys are different sequences: there is no previous, next or distance"
        return notes or [cross]
    if all(bool(figures.induction.isnan().all()) for figures in statistics):
        notes.append("induction and duplicate need tokens=, and tokens that occur again")
    elif (repeats := max(figures.repeats for figures in statistics)) < REPEATS:
        notes.append(
            f"induction and duplicate rest on {repeats} queries, too few to name a head by them"
        )
    if all(bool(figures.special.isnan().all()) for figures in statistics):
        notes.append("special needs special=, or words as tokens=")
    return notes


def _layer_notes(layers: Sequence[Layer], cross: bool | None) -> list[str]:
    """Layers that may be of one sequence or of two, and layers that were left out."""
    notes = []
    shares = [layer for layer in layers if has_shares(layer)]
    guesses = [layer.name for layer in shares if cross is None and is_guess(layer)]
    if guesses:
        notes.append(
            f"{_first_of(guesses)}: not known to be self-attention, and queries and keys differ in "
            "number: taken for different sequences; "
            f"trace.relabel({{{guesses[0]!r}: 'self'}}) says otherwise"
        )
    without = [layer for layer in layers if not has_shares(layer)]
    if without:
        names, kind = [layer.name for layer in without], without[0].recipe.kind
        notes.append(f"{_first_of(names)}: left out, as {kind} weights are no shares of a whole")
    return notes


def _first_of(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _ranked(rows: Sequence[HeadRow], figure: str, least: bool = False) -> list[HeadRow]:
    return sorted(rows, key=lambda row: getattr(row, figure), reverse=not least)


def _number(name: str, value: float) -> str:
    """Shares with two digits, numbers of keys with one."""
    if math.isnan(value):
        return "–"
    return f"{value:.1f}" if name in ("effective", "distance", "spread") else f"{value:.2f}"
