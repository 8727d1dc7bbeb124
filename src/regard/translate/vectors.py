"""Pretrained word vectors in an embedding.

Three forms are read, each plain or gzip: GloVe's text (a word and its numbers in each line),
word2vec's text (the same behind a line with the count of words and of numbers) and word2vec's
binary form (that line, then each word, a space and its numbers as 32-bit floats).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.translate.data.lines import lines, opened
from regard.translate.tokens import NAMES
from regard.translate.vocabulary.words import WordVocabulary

_HEADER = re.compile(rb"(\d+) +(\d+) *\r?\n")
_LONGEST_LINE = 1 << 20  # bytes that the first lines may have
_LONGEST_WORD = 1 << 14  # bytes
_SAMPLE = 1 << 12  # bytes that tell text from binary
_CHUNK = 1 << 20


class Vectors(NamedTuple):
    """Words and their vectors."""

    words: dict[str, int]  #: the row of each
    matrix: Float[Tensor, "word width"]


@dataclass(frozen=True)
class VectorReport:
    """How many words of a vocabulary have a vector in the file."""

    path: str
    words: int  #: in the vocabulary, without the four tokens it begins with
    found: int  #: in the file as they are
    lowered: int  #: in the file in lower case only

    @property
    def share(self) -> float:
        """The share of the words that have a vector, one way or the other."""
        return (self.found + self.lowered) / self.words if self.words else 0.0

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.found + self.lowered:,} of {self.words:,} words have a vector "
            f"({self.share:.1%}), {self.lowered:,} of them in lower case only"
        )


def load_vectors(
    path: str | PathLike[str],
    vocabulary: WordVocabulary,
    embedding: nn.Embedding,
    *,
    frozen: bool = False,
) -> VectorReport:
    """Load the vectors of a file into an embedding, after all of it has been read.

    A word that is not in the file is looked up in lower case; words without a vector keep theirs.

    Args:
        path: the file of vectors.
        vocabulary: the words of the embedding's rows.
        embedding: as many rows as words, as wide as the vectors.
        frozen: exclude the whole embedding from training.
    """
    size, width = embedding.weight.shape
    if size != len(vocabulary):
        raise ShapeError(f"the embedding has {size} rows, the vocabulary {len(vocabulary)} words")
    entries = vocabulary.entries[len(NAMES) :]
    vectors = read_vectors(path, {*entries, *map(str.lower, entries)})
    if vectors.matrix.shape[1] != width:
        raise ShapeError(
            f"{path}: vectors of {vectors.matrix.shape[1]} numbers, but the embedding has {width}"
        )
    exact = {word for word in entries if word in vectors.words}
    rows_found, chosen = [], []
    for row, word in enumerate(entries, start=len(NAMES)):
        index = vectors.words.get(word, vectors.words.get(word.lower()))
        if index is not None:
            rows_found.append(row)
            chosen.append(index)
    device = embedding.weight.device
    with torch.no_grad():
        values = vectors.matrix[chosen].to(embedding.weight)
        embedding.weight[torch.tensor(rows_found, dtype=torch.long, device=device)] = values
    embedding.weight.requires_grad_(not frozen)
    return VectorReport(str(path), len(entries), len(exact), len(rows_found) - len(exact))


def read_vectors(path: str | PathLike[str], wanted: Collection[str] | None = None) -> Vectors:
    """The vectors of a file, whose format is detected.

    Args:
        path: the file.
        wanted: these words alone; all of them when None. The numbers of others are not looked at.
    """
    path = Path(path)
    form = _form(path)
    read = _binary if form.binary else _text
    words: dict[str, int] = {}
    rows: list[Tensor] = []
    for word, row in read(path, form, wanted):
        if word not in words:  # the first of several
            words[word] = len(rows)
            rows.append(row)
    return Vectors(words, torch.stack(rows) if rows else torch.empty(0, form.width))


@dataclass(frozen=True)
class _Form:
    """What the first lines of a file tell of it."""

    count: int | None  # of words; None where no line says it
    width: int
    binary: bool


def _form(path: Path) -> _Form:
    with opened(path) as file:
        first, next_bytes = file.readline(_LONGEST_LINE), file.read(_SAMPLE)
    first = first.removeprefix(codecs.BOM_UTF8)  # as `lines` does
    header = _HEADER.fullmatch(first)
    if header is None:
        width = len(first.rstrip().split(b" ")) - 1
        if width < 1:
            raise RegardError(f"{path}:1: {first[:60]!r}, expected a word and its numbers")
        return _Form(None, width, False)
    count, width = int(header[1]), int(header[2])
    if width < 1:
        raise RegardError(f"{path}:1: vectors of {width} numbers, expected at least 1")
    return _Form(count, width, not _is_text(next_bytes))


def _is_text(sample: bytes) -> bool:
    """Whether these bytes are UTF-8 without control characters, which binary numbers are not."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return False
    return not re.search(r"[\x00-\x08\x0e-\x1f]", text)


def _text(
    path: Path, form: _Form, wanted: Collection[str] | None
) -> Iterator[tuple[str, Float[Tensor, " width"]]]:
    read = 0
    for number, line in lines(path):
        if number == 1 and form.count is not None:
            continue
        cells = line.rstrip(" ").rsplit(" ", form.width)
        # A word may have spaces in it, such as ". . .", but not numbers behind them.
        _, *rest = cells[0].split(" ")
        if len(cells) <= form.width or not cells[0] or (rest and all(map(_is_number, rest))):
            raise RegardError(
                f"{path}:{number}: {line[:40]!r} has {max(0, len(line.split()) - 1)} numbers, "
                f"expected a word and {form.width}"
            )
        read += 1
        if wanted is None or cells[0] in wanted:
            yield cells[0], _row(f"{path}:{number}", cells[1:])
    if form.count not in (None, read):
        raise RegardError(f"{path}:1: says {form.count} words, but there are {read}")


def _binary(
    path: Path, form: _Form, wanted: Collection[str] | None
) -> Iterator[tuple[str, Float[Tensor, " width"]]]:
    with opened(path) as file:
        at = len(file.readline())  # of what is held, in the file
        held, start = b"", 0
        for number in range(form.count or 0):
            space = held.find(b" ", start)
            while space < 0 or len(held) < space + 1 + 4 * form.width:
                more = file.read(_CHUNK)
                if not more or (space < 0 and len(held) - start > _LONGEST_WORD):
                    raise RegardError(
                        f"{path}: word {number + 1} of {form.count}, which begins at byte "
                        f"{at + start}, is {'cut off' if not more else 'no word'}; expected a "
                        f"word, a space and {form.width} numbers of 4 bytes"
                    )
                held, at, start = held[start:] + more, at + start, 0
                space = held.find(b" ")
            word = held[start:space].lstrip(b"\n").decode("utf-8", "replace")
            end = space + 1 + 4 * form.width
            if wanted is None or word in wanted:
                row = torch.frombuffer(bytearray(held[space + 1 : end]), dtype=torch.float32)
                yield word, _finite(f"{path}: word {number + 1} at byte {at + start}", row)
            start = end
        rest = (held[start:] + file.read(_CHUNK)).strip(b"\n")
        if rest:
            raise RegardError(
                f"{path}: its first line says {form.count} words, but it goes on after them, at "
                f"byte {at + start}"
            )


def _row(position: str, cells: list[str]) -> Tensor:
    if not all(map(_is_number, cells)):
        wrong = next(cell for cell in cells if not _is_number(cell))
        raise RegardError(f"{position}: {wrong!r:.40} is no number")
    return _finite(position, torch.tensor([float(cell) for cell in cells]))


def _finite(position: str, row: Tensor) -> Tensor:
    if not row.isfinite().all():
        raise RegardError(f"{position}: numbers that are not finite")
    return row


def _is_number(text: str) -> bool:
    """Whether C would read a number here: Python also takes 1_0 and the digits of other scripts."""
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and "_" not in text
