"""What a notebook shows of a trace or a record: its page in a frame, or its table."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.errors import RegardError
from regard.record import Record, Trace, table
from regard.viewer.document import page
from regard.viewer.frame import framed

BUDGET = 4_000_000  # bytes that a page in a notebook should have,
_LARGEST = 2 * BUDGET  # and those that it must not exceed
_MOST = 30_000_000  # weights whose page is made in the time people wait for a cell


def shown(what: Trace | Record, **options: Any) -> str:
    """A trace or a record as a notebook shows it: its page in a frame; its table, with the reason,
    where a page is not possible. Raises nothing, since a cell that ran must not look failed.

    Args:
        what: what is shown.
        options: of `page`.
    """
    trace = Trace([what]) if isinstance(what, Record) else what
    try:
        why = _too_many(trace)
        if not why:
            html = page(what, budget=BUDGET, **options).html
            why = f"its page has {table.size(len(html))}" if len(html) > _LARGEST else ""
        if not why:
            return framed(html)
        name = type(what).__name__.lower()
        why += f": {name}.save('attention.html') writes one that opens in a browser"
    except RegardError as error:
        why = str(error)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    return f"<p>No page here, {escape(why)}</p>{table.html(trace)}"


def _too_many(trace: Trace) -> str:
    """Why no page of it is made, if it is too long."""
    count = sum(shape.heads * shape.queries * shape.keys for shape in (r.shape for r in trace))
    return f"{count:,} weights are too many for a notebook" if count > _MOST else ""
