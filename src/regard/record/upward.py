"""`trace.report()`, `trace.find()`, `trace.plot()`, pages: lazy calls of packages above `record`.

Nothing else in `record` knows of those packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.aggregate.statistics.head_finder import HeadRanking as HeadRanking
    from regard.aggregate.statistics.report import Report as Report
    from regard.plots.specs import Spec as Spec
    from regard.record.record import Record
    from regard.record.trace import Trace


PAGES = (".html", ".htm")  #: how the names of pages end


def report(trace: Trace, **options: Any) -> Report:
    """The table of all heads."""
    from regard.aggregate.statistics.report import Report

    return Report.of(trace, **options)


def find(trace: Trace, **options: Any) -> HeadRanking:
    """The heads that make one word attend to another."""
    from regard.aggregate.statistics.head_finder import find_heads

    return find_heads(trace, **options)


def plot(trace: Trace, what: str | None, **options: Any) -> Spec:
    """A picture, to be saved or shown."""
    from regard.plots.of_trace import plot

    return plot(trace, what, **options)


def save(what: Trace | Record, path: str | Path, **options: Any) -> Path:
    """A page where the file's name ends in .html, else a safetensors file."""
    path = Path(path)
    if path.suffix.lower() in PAGES:
        from regard.viewer.document import checked_page_path, page

        checked_page_path(path)
        return page(what, **options).save(path)
    if options:
        raise RegardError(
            f"save: {', '.join(options)}: options of a page, but {path.name!r} does not end in "
            ".html"
        )
    from regard.record.store import save
    from regard.record.trace import Trace

    return save(what if isinstance(what, Trace) else Trace([what]), path)


def shown(what: Trace | Record, **options: Any) -> str:
    """What a notebook shows."""
    from regard.viewer.notebook import shown

    return shown(what, **options)
