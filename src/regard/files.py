"""Files: errors that name the path, and atomic writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident

from regard.errors import RegardError

PART = ".part"  #: suffix of a file that is not complete yet


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError while reading into an error that names `path`."""
    try:
        yield
    except OSError as error:
        raise RegardError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing into an error that names `path`."""
    try:
        yield
    except OSError as error:
        raise RegardError(f"{path} cannot be written: {_reason(error, path)}") from error


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary path to write; it replaces `path` on success and is deleted on failure.

    Bytes are synced before the rename: a rename may reach the disk first, and a crash in between
    would leave a file of zeros. Concurrent writers use different temporary files; the last to
    finish wins.

    A symbolic link stays, and its target is written. Special files, such as a pipe or `/dev/null`,
    are written into and never replaced.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with _written_into(path) as temporary:
            yield temporary
        return
    link, path = path, path.resolve()
    half_done = _half_done(path)
    with writing(link):
        try:
            half_done.unlink(missing_ok=True)  # a stale one has its own permissions
            half_done.touch()
            rights = half_done.stat().st_mode  # default permissions; some writers narrow them
            yield half_done
            half_done.chmod(rights)
            with half_done.open("r+b") as file:
                os.fsync(file.fileno())
            half_done.replace(path)
        finally:
            with suppress(OSError):  # the earlier error matters
                half_done.unlink(missing_ok=True)
        if os.name != "nt":  # Windows cannot open folders
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _half_done(path: Path) -> Path:
    """The temporary path of this thread."""
    return path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}{PART}")


@contextmanager
def _written_into(path: Path) -> Iterator[Path]:
    """A temporary path whose bytes are then written into `path`, a special file."""
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        yield temporary
        with writing(path):
            path.write_bytes(temporary.read_bytes())


def write_text(path: Path, text: str) -> None:
    """Write a text atomically; errors name the path."""
    with written_whole(path) as half_done:
        half_done.write_text(text, encoding="utf-8")


def check_folder(path: Path) -> None:
    """Refuse a path whose folder is missing, or that is a folder, before any work is done."""
    if path.is_dir():
        raise RegardError(f"{path} is a folder, expected the name of a file to write")
    if not path.parent.is_dir():
        raise RegardError(f"{path}: there is no folder {path.parent}")


def make_folder(path: Path) -> None:
    """Create a folder and its parents; errors name the path."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RegardError(f"{path} cannot be made a folder: {_reason(error, path)}") from error


def _reason(error: OSError, path: Path) -> str:
    """The system's message, with its file name if that is another one."""
    reason = error.strerror or str(error)
    own = {str(path), str(path.resolve()), str(_half_done(path.resolve()))}
    other = error.filename is not None and str(error.filename) not in own
    return f"{reason}: {error.filename}" if other else reason
