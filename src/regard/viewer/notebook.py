"""Notebook display of a trace or a record: its page in a frame, or its table."""

from __future__ import annotations

from html import escape
from typing import Any

from regard.errors import RegardError
from regard.record import Record, Trace, table
from regard.viewer.document import page
from regard.viewer.frame import framed

BUDGET = 4_000_000  # target size of a page in a notebook,
_LARGEST = 2 * BUDGET  # and its maximum
_MOST = 30_000_000  # weights whose page is made fast enough for a cell


def shown(what: Trace | Record, **options: Any) -> str:
    """The page in a frame, or the table with the reason where a page is not possible.

    Never raises: a cell that ran must not look failed.

    Args:
        what: the trace or record.
        options: those of `page`.
    """
    trace = Trace([what]) if isinstance(what, Record) else what
    try:
        reason = _too_many(trace)
        if not reason:
            html = page(what, budget=BUDGET, **options).html
            reason = f"its page has {table.size(len(html))}" if len(html) > _LARGEST else ""
        if not reason:
            return framed(html)
        name = type(what).__name__.lower()
        reason += f": {name}.save('attention.html') writes one that opens in a browser"
    except RegardError as error:
        reason = str(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    return f"<p>No page here, {escape(reason)}</p>{table.html(trace)}"


def _too_many(trace: Trace) -> str:
    """The reason against a page, if the trace is too long."""
    count = sum(shape.heads * shape.queries * shape.keys for shape in (r.shape for r in trace))
    return f"{count:,} weights are too many for a notebook" if count > _MOST else ""
