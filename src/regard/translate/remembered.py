"""The head that a checkpoint's translations are read by, kept in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import RegardError
from regard.translate.alignment import Head, Reading
from regard.translate.checkpoint import FILE


class Remembered(NamedTuple):
    """A head, and the reading it was chosen with; the model's own when None."""

    head: Head
    reading: Reading | None


def remember(path: str | Path, head: Head, reading: Reading) -> None:
    """Write into a checkpoint how its translations are to be read; all else stays as it is.

    Args:
        path: the file.
        head: the head to read.
        reading: which row is a word's.
    """
    header, tensors = FILE.read(Path(path))
    named = {"site": head.site, "index": head.index, "reading": reading}
    extra = {**header.get("extra", {}), "head": named}
    FILE.write(Path(path), tensors, {**header, "extra": extra})


def remembered(extra: dict[str, Any]) -> Remembered | None:
    """What a checkpoint's `extra` says of the head to read, if it says something."""
    named = extra.get("head")
    if named is None:
        return None
    if not (
        isinstance(named, dict)
        and isinstance(named.get("site"), str)
        and type(named.get("index", "missing")) in (int, type(None))
    ):
        raise RegardError(
            f"the checkpoint names the head {named!r:.80}, expected its site and index"
        )
    return Remembered(Head(named["site"], named["index"]), named.get("reading"))
