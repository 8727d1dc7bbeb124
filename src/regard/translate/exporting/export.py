"""`export`: a checkpoint into a folder that another package loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from regard.errors import RegardError
from regard.files import PART, make_folder, writing
from regard.translate.checkpoint import Checkpoint
from regard.translate.exporting.ctranslate2 import write_ctranslate2
from regard.translate.exporting.exportable import transformer_of
from regard.translate.exporting.marian import write_marian

#: Formats by name, each with its writer.
FORMATS: dict[str, Callable[[Checkpoint, Path], None]] = {
    "ctranslate2": write_ctranslate2,
    "marian": write_marian,
}


def export(checkpoint: Checkpoint, folder: str | Path, format: str) -> None:
    """Write a Transformer so that another package translates with it.

    The tokens of greedy and beam search are the same, and so are their log-probabilities, within
    the rounding of float32.

    Args:
        checkpoint: the translator; `load_checkpoint(path)` reads one.
        folder: a new or empty folder; written whole or not at all.
        format: "ctranslate2", or "marian" for transformers' `MarianMTModel` and `MarianTokenizer`.
    """
    if not isinstance(checkpoint, Checkpoint):
        raise RegardError(
            f"export: checkpoint is {checkpoint!r:.60}, expected a Checkpoint: "
            "load_checkpoint(path) reads one"
        )
    if format not in FORMATS:
        raise RegardError(f"export: format is {format!r}, expected one of {', '.join(FORMATS)}")
    transformer_of(checkpoint)
    with _folder_written_whole(Path(folder)) as half_done:
        FORMATS[format](checkpoint, half_done)


@contextmanager
def _folder_written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` on success, and is deleted on failure."""
    if folder.exists() and not folder.is_dir():
        raise RegardError(f"{folder} is a file, expected a folder or nothing")
    if folder.is_dir() and any(folder.iterdir()):
        raise RegardError(f"{folder} is not empty, expected a new or empty folder")
    make_folder(folder.resolve().parent)
    with (
        writing(folder),
        TemporaryDirectory(dir=folder.resolve().parent, suffix=PART) as temporary,
    ):
        half_done = Path(temporary) / "folder"
        half_done.mkdir()
        yield half_done
        half_done.replace(folder.resolve())
