"""A progress bar on terminals; only this file and `cli` use rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regard.errors import MissingExtraError


@contextmanager
def progress(
    title: str, total: int | None, show: bool | None = None
) -> Iterator[Callable[..., None]]:
    """A function that advances the bar, by 1 unless told otherwise.

    Args:
        title: label of the bar.
        total: amount of work; None if unknown.
        show: whether to draw; when None, where rich is installed and the output is a terminal.
    """
    if show is None and not sys.stderr.isatty():
        show = False
    bar = None if show is False else _bar()
    if bar is None:
        if show:
            raise MissingExtraError("rich", "cli")
        yield lambda done=1.0: None
        return
    with bar:
        number = bar.add_task(title, total=total)
        yield lambda done=1.0: bar.advance(number, done)


def _bar() -> Any:
    """Rich's bar on standard error, or None where it is not installed."""
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        return None
    return Progress(console=Console(stderr=True), transient=True)
