"""Files: errors that name them, and new ones that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident

from regard.errors import RegardError

PART = ".part"  #: how the name of a file ends that is not whole yet


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A file that cannot be read is an error that names `path`."""
    try:
        yield
    except OSError as error:
        raise RegardError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full, or a place that cannot be written, is an error that names `path`."""
    try:
        yield
    except OSError as error:
        raise RegardError(f"{path} cannot be written: {_reason(error, path)}") from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The name of a file to write; it becomes `path` once all is well, and goes if it is not.

    A rename alone may reach the disk before the bytes do, and a machine that goes down between the
    two leaves a file of zeros where there was a good one. So bytes go first, then the name.

    Two that write one file do not meet: the last one to finish is the one that stays.

    A link stays a link, and what it leads to is written. What is no file of a disk, such as a pipe
    or `/dev/null`, is written into and never replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with _written_into(path) as temporary:
            yield temporary
        return
    link, path = path, path.resolve()
    half_done = _half_done(path)
    with writing(link):
        try:
            half_done.unlink(missing_ok=True)  # one that was left behind has rights of its own
            half_done.touch()
            rights = half_done.stat().st_mode  # what new files have here; some writers narrow it
            yield half_done
            half_done.chmod(rights)
            with half_done.open("r+b") as file:
                os.fsync(file.fileno())
            half_done.replace(path)
        finally:
            with suppress(OSError):  # the error before this one is the one to tell
                half_done.unlink(missing_ok=True)
        if os.name != "nt":  # Windows has no folders that can be opened
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _half_done(path: Path) -> Path:
    """Where this thread writes a file before it gets its name."""
    return path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}{PART}")


@contextmanager
def _written_into(path: Path) -> Iterator[Path]:
    """The name of a file to write; its bytes then go into `path`, which stays what it is."""
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        yield temporary
        with writing(path):
            path.write_bytes(temporary.read_bytes())


def write_text(path: Path, text: str) -> None:
    """Write a text; a place that cannot be written is named."""
    with written_whole(path) as half_done:
        half_done.write_text(text, encoding="utf-8")


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is not there, or that is one, before any work is done for it."""
    if path.is_dir():
        raise RegardError(f"{path} is a folder, expected the name of a file to write")
    if not path.parent.is_dir():
        raise RegardError(f"{path}: there is no folder {path.parent}")


def make_folder(path: Path) -> None:
    """A folder with those above it; one that cannot be made is named."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RegardError(f"{path} cannot be made a folder: {_reason(error, path)}") from error


def _reason(error: OSError, path: Path) -> str:
    """What the machine says, with the file where that is another one."""
    reason = error.strerror or str(error)
    own = {str(path), str(path.resolve()), str(_half_done(path.resolve()))}
    other = error.filename is not None and str(error.filename) not in own
    return f"{reason}: {error.filename}" if other else reason
