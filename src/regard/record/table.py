"""A trace as a table, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.record.record import Record
    from regard.record.trace import Trace

_LONGEST = 40  # sites shown before the middle ones are left out
_HEADER = ("site", "attends", "kind", "batch", "heads", "queries × keys", "held")


def text(trace: Trace) -> str:
    """The table as text."""
    rows = [_HEADER, *_shortened(_rows(trace))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([_title(trace), *lines, *_remarks(trace)])


def html(trace: Trace) -> str:
    """The table as HTML, with names escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _shortened(_rows(trace))
    )
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in _remarks(trace))
    return (
        f"<p>{escape(_title(trace))}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>" + (f"<ul>{remarks}</ul>" if remarks else "")
    )


def size(count: int) -> str:
    """A number of bytes as text."""
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def _title(trace: Trace) -> str:
    gates = len({record.site.base for record in trace if record.kind == "gate"})
    sites = len({record.site.base for record in trace})
    calls = f" in {len(trace)} calls" if len(trace) != sites else ""
    counts = [f"{sites - gates} attention{'s' * (sites - gates != 1)}"]
    if gates:
        counts = [*(counts if sites > gates else []), f"{gates} gate{'s' * (gates != 1)}"]
    return f"Trace of {' and '.join(counts)}{calls}, {size(trace.nbytes)} held"


def _rows(trace: Trace) -> list[tuple[str, ...]]:
    """A row for each site, over all its calls."""
    by_site: dict[str, list[Record]] = {}
    for record in trace:
        by_site.setdefault(record.site.base, []).append(record)
    return [_row(records) for records in by_site.values()]


def _row(records: Sequence[Record]) -> tuple[str, ...]:
    calls = f" ×{len(records)}" if len(records) > 1 else ""
    storages: dict[int, int] = {}
    for record in records:
        storages.update(record.storages)
    held = _range(record.held for record in records)
    sizes = f"{_range(r.shape.queries for r in records)} × {_range(r.shape.keys for r in records)}"
    edges = [record.n_edges for record in records if record.n_edges is not None]
    if edges:
        sizes += f", {_range(edges)} edges"
    batch = _range(record.shape.batch for record in records)
    heads = _range(record.shape.heads for record in records)
    if not all(record.site.axes_known for record in records):
        batch, heads = "?", "?"
        sizes = f"{_range(tuple(record.shape) for record in records)}, axes unknown"
    return (
        records[0].site.base + calls,
        _range(record.attends for record in records),
        _range(record.kind for record in records),
        batch,
        heads,
        sizes,
        f"{held}, {size(sum(storages.values()))}" if storages else held,
    )


def _range(items: Iterable[object]) -> str:
    """The only value, the range of several numbers, or several values."""
    values = list(dict.fromkeys(items))
    if len(values) == 1:
        return str(values[0])
    if all(isinstance(value, int) for value in values):
        return f"{min(values)}–{max(values)}"  # type: ignore[type-var]
    return "/".join(str(value) for value in values)


def _shortened(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    if len(rows) <= _LONGEST:
        return rows
    half = _LONGEST // 2
    gap = (f"… {len(rows) - 2 * half} more …", *[""] * (len(_HEADER) - 1))
    return [*rows[:half], gap, *rows[-half:]]


def _remarks(trace: Trace) -> list[str]:
    notes = [f"note: {note}" for note in dict.fromkeys(trace.notes)]
    if trace.other_softmaxes:
        others = trace.other_softmaxes
        sites = list(dict.fromkeys(other.path or other.module_class for other in others))
        listed = ", ".join(sites[:3]) + ", …" * (len(sites) > 3)
        count = f"{len(sites)} softmax{'es' * (len(sites) != 1)}"
        notes.append(
            f"{count} not taken for attention ({listed}): trace.other_softmaxes has the reasons"
        )
    return notes


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
