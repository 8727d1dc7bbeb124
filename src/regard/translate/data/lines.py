"""Lines of a text file, plain or gzip; errors name file and line."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from regard.errors import RegardError

_GZIP = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # a byte-order mark, which some editors write first


def lines(file: Path | Iterable[bytes], name: str | None = None) -> Iterator[tuple[int, str]]:
    """Each line of a UTF-8 file with its number from 1, without its line end.

    A line ends at a line feed alone: the other characters that Python takes for line ends occur
    inside sentences. A byte-order mark is no part of the first.

    Args:
        file: where the file is, which may be gzip, as its first bytes say; or an open stream of
            bytes, such as standard input, which is left open.
        name: what it is called in errors; its path when None.
    """
    if not isinstance(file, Path):
        yield from _decoded(file, name)
        return
    with opened(file) as stream:
        yield from _decoded(stream, str(file) if name is None else name)


def _decoded(stream: Iterable[bytes], name: str | None) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(_MARK)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RegardError(
                f"{name}:{number}: byte {error.start + 1} of the line is "
                f"0x{line[error.start]:02x}, which is no UTF-8 ({error.reason}); convert the file: "
                "iconv -f WINDOWS-1252 -t UTF-8, or leave such bytes out: iconv -c -f UTF-8 -t "
                "UTF-8"
            ) from error
        yield number, text.removesuffix("\n").removesuffix("\r")


@contextmanager
def opened(path: Path) -> Iterator[BufferedIOBase]:
    """A binary stream of a file, decompressed if it is gzip."""
    try:
        with path.open("rb") as plain:
            if plain.peek(2)[:2] != _GZIP:
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield unpacked
    except FileNotFoundError as error:
        raise RegardError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise RegardError(f"{path} is a folder, expected a file of lines") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RegardError(f"{path} is a broken gzip file: {error}") from error
    except OSError as error:
        raise RegardError(f"{path} cannot be read: {error}") from error
