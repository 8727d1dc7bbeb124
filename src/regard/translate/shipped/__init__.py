"""The translators that ship with the package, one for each direction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

SHIPPED = ("english-french", "french-english")  #: their names, that of the default first


def is_shipped(path: str | Path, folder: Path = Path()) -> bool:
    """Whether `path` names a shipped translator, and no file of that name is in the folder."""
    return str(path) in SHIPPED and not (folder / path).exists()


@contextmanager
def shipped_file(name: str) -> Iterator[Path]:
    """The file of a shipped translator, unpacked if the package is in an archive."""
    with as_file(files(__name__) / f"{name}.safetensors") as path:
        yield path
