"""Documents from lists, iterators, datasets and files, one at a time."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from regard.corpus.batch import Batch
from regard.errors import MissingExtraError, RegardError
from regard.files import reading

_ROWS = 256  # of a Parquet file that are read at a time


@dataclass(frozen=True)
class Unreadable:
    """A document that could not be read."""

    error: str


class Source:
    """Documents of a corpus, in order.

    Args:
        source: a list, an iterator or a dataset of documents; or the path of a file with a document
            in each line (.txt), a JSON object in each line (.jsonl), or rows (.parquet), or a list
            of such paths. Files may be compressed (.gz), but for Parquet.
        column: the column of a table, or the key of a JSON object, that has the text.
    """

    def __init__(self, source: Any, column: str) -> None:
        if isinstance(source, str | Tensor | Mapping) or not isinstance(source, Iterable | Path):
            hint = "; for a file pass its Path" if isinstance(source, str) else ""
            raise RegardError(
                f"corpus: {source!r:.60} is a {type(source).__name__}, expected documents, as a "
                f"list, an iterator or a dataset, or the path of a file{hint}"
            )
        self.source: Any = source
        self.column = column

    @property
    def _paths(self) -> list[Path]:
        """The files that documents are in; none where they are no files."""
        several = self.source if isinstance(self.source, list | tuple) else [self.source]
        return list(several) if all(isinstance(each, Path) for each in several) else []

    def __iter__(self) -> Iterator[Any]:
        if _is_of_ray(self.source):
            return self._of_ray(self.source)
        if not self._paths:
            return iter(self.source)
        return itertools.chain.from_iterable(map(self._documents, self._paths))

    def _documents(self, path: Path) -> Iterator[Any]:
        suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
        kind = suffixes[-1] if suffixes else ""
        if kind == ".parquet":
            return self._rows(path)
        if kind in (".csv", ".tsv"):
            raise RegardError(
                f"{path} is a table, expected lines (.txt), .jsonl or .parquet; its texts may "
                f"be a list, as pandas.read_csv(path)[{self.column!r}].tolist()"
            )
        return self._lines(path, json_lines=kind in (".jsonl", ".ndjson", ".json"))

    @property
    def size(self) -> int | None:
        """How many documents there are, if that is known without reading them."""
        if _is_of_ray(self.source) or self._paths or not isinstance(self.source, Sized):
            return None
        return len(self.source)

    @property
    def may_be_read_again(self) -> bool:
        """Whether other processes can read the documents themselves, in the same order."""
        return not isinstance(self.source, Iterator) and not _is_of_ray(self.source)

    def __getstate__(self) -> dict[str, Any]:
        """What other processes are sent."""
        return vars(self) | ({} if self.may_be_read_again else {"source": []})

    def _of_ray(self, dataset: Any) -> Iterator[Any]:
        """Documents of a dataset of Ray in the order of their ids, as it has no order of its own;
        all are held in memory."""
        names = dataset.schema().names if dataset.schema() else []
        columns = [name for name in ("input_ids", self.column) if name in names]
        if "id" not in names or not columns:
            raise RegardError(
                f"corpus: the dataset of Ray has the columns {', '.join(names) or '(none)'}, "
                "expected 'id' (0, 1, 2, …, as a dataset has no order of its own) and 'input_ids' "
                f"or {self.column!r}"
            )
        chosen = dataset.select_columns(["id", columns[0]])
        by_id: dict[Any, Any] = {}
        for table in chosen.iter_batches(batch_format="pyarrow", batch_size=_ROWS):
            for row in table.to_pylist():
                if row["id"] in by_id:
                    raise RegardError(f"corpus: the dataset of Ray has the id {row['id']} twice")
                by_id[row["id"]] = {columns[0]: row[columns[0]]}
        total = len(by_id)
        for number in range(total):
            if number not in by_id:
                raise RegardError(
                    f"corpus: the dataset of Ray has no id {number}, expected 0 to "
                    f"{total - 1}, each once"
                )
            yield by_id.pop(number)

    def _lines(self, path: Path, json_lines: bool) -> Iterator[Any]:
        """Lines that are not blank."""
        opened = gzip.open if path.suffix == ".gz" else open
        try:
            with reading(path), opened(path, "rb") as file:
                for line in file:
                    if line.strip():
                        yield _parsed(line, json_lines)
        except (EOFError, zlib.error) as error:  # of a compressed file that is cut or damaged
            raise RegardError(f"{path} cannot be read: {error}") from error

    def _rows(self, path: Path) -> Iterator[Any]:
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise MissingExtraError("pyarrow", "parquet") from error
        with reading(path), parquet.ParquetFile(path) as file:
            wanted = [
                name for name in ("input_ids", self.column) if name in file.schema_arrow.names
            ]
            if not wanted:
                names = ", ".join(file.schema_arrow.names)
                raise RegardError(f"{path} has no column {self.column!r}, there are {names}")
            for rows in file.iter_batches(_ROWS, columns=wanted[:1]):
                yield from rows.to_pylist()


def _is_of_ray(source: Any) -> bool:
    """Whether it is a dataset of Ray, which need not be installed."""
    return type(source).__module__.startswith("ray.data.")


def _parsed(line: bytes, json_line: bool) -> Any:
    try:
        text = line.decode().rstrip("\r\n")
        return json.loads(text) if json_line else text
    except ValueError as error:  # of UTF-8 as well
        return Unreadable(f"not {'JSON' if json_line else 'UTF-8'}: {error}")


def digest_of(documents: Iterable[Any]) -> str:
    """A checksum of documents, by which others in their place are noticed."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        for leaf in _leaves(document):
            raw = leaf if isinstance(leaf, bytes) else repr(leaf).encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def _leaves(document: Any) -> Iterator[Any]:
    if isinstance(document, str):
        yield document.encode("utf-8", "surrogatepass")
        return
    if isinstance(document, Batch):
        document = [document.inputs, document.real, document.tokens, list(document.texts)]
    for leaf in tree_leaves(document):
        if isinstance(leaf, Tensor):
            yield repr((leaf.dtype, tuple(leaf.shape)))
            leaf = leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield leaf
