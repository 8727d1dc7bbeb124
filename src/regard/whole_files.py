"""Files that are written whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.errors import RegardError


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The name of a file to write; it becomes `path` once all is well, and goes if it is not.

    A rename alone may reach the disk before the bytes do, and a machine that goes down between the
    two leaves a file of zeros where there was a good one. So bytes go first, then the name.
    """
    half_done = path.with_name(path.name + ".part")
    try:
        half_done.touch()
        rights = half_done.stat().st_mode  # what new files have here; some writers narrow it
        yield half_done
        half_done.chmod(rights)
        with half_done.open("r+b") as file:
            os.fsync(file.fileno())
        half_done.replace(path)
    finally:
        half_done.unlink(missing_ok=True)
    if os.name != "nt":  # Windows has no folders that can be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, text: str) -> None:
    """Write a text; a place that cannot be written is named."""
    try:
        with written_whole(path) as half_done:
            half_done.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RegardError(f"{path} cannot be written: {error.strerror}") from error
