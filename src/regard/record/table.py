"""A trace as a table, in a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.record.record import Record
    from regard.record.trace import Trace

_LONGEST = 40  # sites shown before the middle ones are left out
_HEADER = ("site", "attends", "kind", "batch", "heads", "queries × keys", "held")


def text(trace: Trace) -> str:
    """The table in characters."""
    rows = [_HEADER, *_shortened(_rows(trace))]
    return "\n".join([_title(trace), text_table(rows), *_remarks(trace)])


def html(trace: Trace) -> str:
    """The table as HTML; names are data, never markup."""
    rows = [_HEADER, *_shortened(_rows(trace))]
    return f"<p>{escape(_title(trace))}</p>{html_table(rows)}{html_list(_remarks(trace))}"


def text_table(rows: Sequence[Sequence[str]], right: Container[str] = ()) -> str:
    """Rows of cells in aligned columns, the first row as headings; those in `right` flush right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    aligned = [str.rjust if heading in right else str.ljust for heading in rows[0]]
    lines = [
        "  ".join(align(cell, width) for align, cell, width in zip(aligned, row, widths)).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as an HTML table, the first row as headings."""
    head, *body = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows)
    )
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def html_list(items: Iterable[str]) -> str:
    """An HTML list; nothing of none."""
    lines = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def size(count: int) -> str:
    """Bytes for people."""
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
    """A row for each site; calls of one site that follow each other alike share one."""
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


def _range(found: Iterable[object]) -> str:
    """One value, or the first and last of several."""
    values = list(dict.fromkeys(found))
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
        places = list(
            dict.fromkeys(other.path or other.module_class for other in trace.other_softmaxes)
        )
        some = ", ".join(places[:3]) + (", …" if len(places) > 3 else "")
        many = f"{len(places)} softmax{'es' * (len(places) != 1)}"
        notes.append(
            f"{many} not taken for attention ({some}): trace.other_softmaxes has the reasons"
        )
    return notes
