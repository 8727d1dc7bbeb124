"""The head that a checkpoint's translations are read by, stored in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from regard.errors import RegardError
from regard.translate.alignment.heads import Head
from regard.translate.alignment.matrix import Reading
from regard.translate.checkpoint import FILE


class PreferredHead(NamedTuple):
    """A head, and the reading it was chosen with; the model's own reading when None."""

    head: Head
    reading: Reading | None


def save_preferred_head(path: str | Path, head: Head, reading: Reading) -> None:
    """Store in a checkpoint which head and reading to use; the rest of the file is unchanged.

    Args:
        path: the checkpoint.
        head: the head to read.
        reading: which row belongs to a word.
    """
    header, tensors = FILE.read(Path(path))
    preferred = {"site": head.site, "index": head.index, "reading": reading}
    extra = {**header.get("extra", {}), "head": preferred}
    FILE.write(Path(path), tensors, {**header, "extra": extra})


def preferred_head(extra: dict[str, Any]) -> PreferredHead | None:
    """The preferred head in a checkpoint's `extra`; None if there is none."""
    entry = extra.get("head")
    if entry is None:
        return None
    if not (
        isinstance(entry, dict)
        and isinstance(entry.get("site"), str)
        and type(entry.get("index", "missing")) in (int, type(None))
    ):
        raise RegardError(
            f"the checkpoint names the head {entry!r:.80}, expected its site and index"
        )
    return PreferredHead(Head(entry["site"], entry["index"]), entry.get("reading"))
