"""Sentences and their translations, read from files.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as folder:
...     file = Path(folder, "pairs.tsv")
...     _ = file.write_text("Go.\\tVa !\\nHi.\\tSalut !\\n", encoding="utf-8")
...     read_pairs(file)
[Pair(source='Go.', target='Va !', line=1), Pair(source='Hi.', target='Salut !', line=2)]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import chain, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.translate.data.lines import lines

AnyPath = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence, its translation, and the line of the file it came from."""

    source: str
    target: str
    line: int = 0


@dataclass(frozen=True)
class ParallelFiles:
    """Two files, one sentence per line; the same line of both is a pair."""

    source: AnyPath
    target: AnyPath

    def __iter__(self) -> Iterator[Pair]:
        paths = Path(self.source), Path(self.target)
        for source, target in zip_longest(*map(lines, paths)):
            if source is None or target is None:
                counts = [sum(1 for _ in lines(path)) for path in paths]
                longer, line = (paths[0], source[0]) if source else (paths[1], target[0])
                raise RegardError(
                    f"{paths[0]} has {counts[0]} lines, {paths[1]} has {counts[1]}: "
                    f"{longer}:{line} has no partner"
                )
            yield Pair(source[1], target[1], source[0])


@dataclass(frozen=True)
class TableFile:
    """A file of tab-separated columns (TSV); quotation marks have no meaning.

    Every row must have as many columns as the first: one with more has a tab inside a sentence.

    Args:
        path: the file.
        source: the column of the sentences: a number from 1, or a name in the first line.
        target: that of their translations.
        header: whether the first line has names; when None, if a column is chosen by name.
    """

    path: AnyPath
    source: int | str = 1
    target: int | str = 2
    header: bool | None = None

    def __iter__(self) -> Iterator[Pair]:
        path = Path(self.path)
        chosen = (self.source, self.target)
        named = any(isinstance(column, str) for column in chosen)
        header = named if self.header is None else self.header
        if named and not header:
            raise RegardError(f"{path}: columns {chosen} have names, but header=False")
        indices: list[int] = []
        first = width = 0  # the number of the first row, and its columns
        for line, text in lines(path):
            cells = text.split("\t")
            if not indices and (header or text.strip()):
                indices = [_index(path, line, cells, column, header) for column in chosen]
                first, width = line, len(cells)
                if header:
                    continue
            if not text.strip():
                yield Pair("", "", line)
                continue
            if len(cells) != width:
                raise RegardError(
                    f"{path}:{line}: {_columns(cells)}, but line {first} has {width}; give all "
                    "rows as many, and write a space where a tab is inside a sentence"
                )
            yield Pair(cells[indices[0]], cells[indices[1]], line)
        if header and not indices:
            raise RegardError(f"{path} is empty, expected the names of its columns in line 1")


@dataclass(frozen=True)
class JsonLinesFile:
    """A file with a JSON object in each line (JSONL).

    Args:
        path: the file.
        source: the key of the sentence; "translation.en" looks for "en" inside "translation".
        target: that of its translation.
    """

    path: AnyPath
    source: str = "source"
    target: str = "target"

    def __post_init__(self) -> None:
        for side in ("source", "target"):
            key = getattr(self, side)
            if not isinstance(key, str):
                raise RegardError(
                    f"{self.path}: {side} is {key!r}, but JSON lines have keys and no columns by "
                    f'number; a key is a text, such as "{key}"'
                )

    def __iter__(self) -> Iterator[Pair]:
        path = Path(self.path)
        for line, text in lines(path):
            if not text.strip():
                yield Pair("", "", line)
                continue
            try:
                value = json.loads(text)
            except ValueError as error:
                raise RegardError(f"{path}:{line}: not JSON: {error}") from error
            except RecursionError as error:
                raise RegardError(f"{path}:{line}: JSON that is nested too deeply") from error
            position = f"{path}:{line}"
            yield Pair(
                _value(position, value, self.source), _value(position, value, self.target), line
            )


@dataclass(frozen=True)
class Shards:
    """Several files of pairs, one after the other.

    Args:
        files: the files.
    """

    files: tuple[PairFile, ...]

    def __iter__(self) -> Iterator[Pair]:
        return chain.from_iterable(self.files)


PairFile = ParallelFiles | TableFile | JsonLinesFile | Shards


def pair_file(
    path: AnyPath,
    target_path: AnyPath | None = None,
    *,
    source: int | str | None = None,
    target: int | str | None = None,
    header: bool = False,
) -> PairFile:
    """A file of pairs by its name: two files, or one whose name ends in .tsv or .jsonl (or .gz).

    Args:
        path: the file, or that of the sources; a pattern such as "part-*.tsv" names several, in
            the order of their names. Of two patterns the first files belong together, and so on.
        target_path: that of the targets, where they are in a second one.
        source: which column or key the sentences are in.
        target: which column or key their translations are in.
        header: whether the first line has the names of columns and is no pair; where a column is
            chosen by name it has.
    """
    patterns = [str(given) for given in (path, target_path) if given is not None]
    if any(map(_is_pattern, patterns)):
        files = (
            pair_file(*paths, source=source, target=target, header=header)
            for paths in _matches(patterns)
        )
        return Shards(tuple(files))
    if target_path is not None:
        if (source, target) != (None, None):
            raise RegardError(f"source={source!r}, target={target!r}: two files have no columns")
        if header:
            raise RegardError(f"header=True: {path} and {target_path} have no columns")
        return ParallelFiles(path, target_path)
    chosen = {
        name: value for name, value in (("source", source), ("target", target)) if value is not None
    }
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        if header:
            raise RegardError(f"header=True: {path} has JSON lines, which have keys and no header")
        return JsonLinesFile(path, **chosen)  # type: ignore[arg-type]
    if name.endswith((".tsv", ".tab", ".txt")):
        return TableFile(path, header=header or None, **chosen)
    commas = "; columns have tabs between them, since sentences have commas"
    raise RegardError(
        f"{path}: expected a name that ends in .tsv, .tab, .txt, .jsonl or .ndjson (or one of them "
        f"with .gz), or two files{commas * name.endswith('.csv')}"
    )


def read_pairs(
    path: AnyPath | PairFile,
    target_path: AnyPath | None = None,
    *,
    source: int | str | None = None,
    target: int | str | None = None,
    header: bool = False,
    empty: bool = False,
) -> list[Pair]:
    """All pairs of a file, or of two, or of all files that a pattern names.

    Args:
        path: the file, or that of the sources; or a `ParallelFiles`, `TableFile`,
            `JsonLinesFile` or `Shards`.
        target_path: that of the targets, where they are in a second one.
        source: which column (a number from 1, or a name in the first line) or key.
        target: that of the translations.
        header: whether the first line has the names of columns and is no pair; where a column is
            chosen by name it has.
        empty: return pairs with an empty side too, so that `clean` can count them. Otherwise they
            are an error.
    """
    files: PairFile
    if isinstance(path, PairFile):
        options = (target_path, source, target, header or None)
        if any(option is not None for option in options):
            raise RegardError(
                f"read_pairs: {type(path).__name__} says its own columns, expected no target_path, "
                "source, target or header beside it"
            )
        files = path
    else:
        files = pair_file(path, target_path, source=source, target=target, header=header)
    return list(files if empty else not_empty(files))


def not_empty(files: PairFile) -> Iterator[Pair]:
    """The pairs of a file one by one; one with an empty side is an error."""
    if isinstance(files, Shards):
        for file in files.files:
            yield from not_empty(file)
        return
    for pair in files:
        for side, text in (("source", pair.source), ("target", pair.target)):
            if not text.strip():
                of = getattr(files, "path", None) or getattr(files, side)
                raise RegardError(
                    f"{of}:{pair.line}: the {side} is empty; take the pair out of the data (of two "
                    "files, this line of both), or in Python read with empty=True and clean"
                )
        yield pair


def _is_pattern(path: str) -> bool:
    return has_magic(path) and not Path(path).exists()


def _matches(patterns: list[str]) -> list[tuple[str, ...]]:
    """The files that patterns name, those that belong together in one tuple."""
    by_pattern = [sorted(glob(pattern, recursive=True)) for pattern in patterns]
    for pattern, paths in zip(patterns, by_pattern):
        if not paths:
            raise RegardError(f"no file matches the pattern {pattern}")
    if len(set(map(len, by_pattern))) > 1:
        counts = ", ".join(
            f"{pattern} names {len(paths)}" for pattern, paths in zip(patterns, by_pattern)
        )
        raise RegardError(f"{counts} files, expected as many")
    return list(zip(*by_pattern))


def _index(path: Path, line: int, cells: list[str], column: int | str, header: bool) -> int:
    """The index of a column, from 0."""
    if isinstance(column, str):
        names = [cell.strip() for cell in cells]
        if names.count(column) != 1:
            how = "no" if column not in names else "more than one"
            number = f"; by its number a column is said as {column}, without quotation marks"
            raise RegardError(
                f"{path}:{line}: there is {how} column {column!r}; the columns are "
                + ", ".join(map(repr, names))
                + number * column.isdecimal()
            )
        return names.index(column)
    if not 1 <= column <= len(cells):
        raise RegardError(
            f"{path}:{line}: there is no column {column}; the columns are 1 to {len(cells)}"
            + (f" ({', '.join(map(repr, cells))})" if header else "")
        )
    return column - 1


def _columns(cells: list[str]) -> str:
    return "1 column" if len(cells) == 1 else f"{len(cells)} columns"


def _value(position: str, value: Any, key: str) -> str:
    if not isinstance(value, dict):
        raise RegardError(
            f"{position}: {json.dumps(value):.60}, expected an object with key {key!r}"
        )
    if key not in value and "." in key:
        outer, inner = key.split(".", 1)
        if isinstance(value.get(outer), dict):
            return _value(position, value[outer], inner)
    if key not in value:
        raise RegardError(
            f"{position}: there is no key {key!r}; the keys are " + ", ".join(map(repr, value))
        )
    if not isinstance(value[key], str):
        raise RegardError(f"{position}: {key!r} is {json.dumps(value[key]):.60}, expected a text")
    return str(value[key])
