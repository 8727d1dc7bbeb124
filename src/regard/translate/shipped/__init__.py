"""The translator that ships with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

SHIPPED = "english-french"  #: its name


def is_shipped(path: str | Path, folder: Path = Path()) -> bool:
    """Whether `path` names the shipped translator, and no file of that name is in the folder."""
    return str(path) == SHIPPED and not (folder / path).exists()


@contextmanager
def shipped_file() -> Iterator[Path]:
    """The file of the shipped translator, unpacked if the package is in an archive."""
    with as_file(files(__name__) / f"{SHIPPED}.safetensors") as path:
        yield path
