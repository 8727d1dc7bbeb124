"""Ratios on a noisy machine: interleaved, in one process, medians of processor time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of processor time of each call, run in turn, after one warm-up."""
    for call in calls.values():
        call()
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def table(title: str, head: list[str], rows: list[list[str]]) -> None:
    """Print a table with columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    print(f"\n{title}")
    for row in [head, ["-" * width for width in widths], *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
