"""Conveniences of a trace that reach upward: lazy calls of packages that lie above this one.

Nowhere else does `record` know of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.aggregate.report import Report as Report
    from regard.plots.specs import Spec as Spec
    from regard.record.trace import Trace


def report(trace: Trace, **options: Any) -> Report:
    """The table of all heads."""
    from regard.aggregate.report import Report

    return Report.of(trace, **options)


def plot(trace: Trace, what: str | None, **options: Any) -> Spec:
    """A picture, to be saved or shown."""
    from regard.plots.of_trace import plot

    return plot(trace, what, **options)
