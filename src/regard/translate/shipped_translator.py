"""The translator that comes with the package: its name, and whether it is meant."""

from __future__ import annotations

from pathlib import Path

SHIPPED = "english-french"  #: the name of the translator that comes with the package


def is_shipped(path: str | Path, folder: Path = Path()) -> bool:
    """Whether this is the name of the translator that ships, and of no file in the folder."""
    return str(path) == SHIPPED and not (folder / path).exists()
