"""A corpus: documents in shards of fixed size, and the batches that each becomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.corpus.batch import Batch, Labels
from regard.corpus.reading import Source, Unreadable, digest_of
from regard.corpus.token_table import TokenTable
from regard.errors import RegardError


class Failure(NamedTuple):
    """A document that was left out, and why."""

    document: int  #: its number in the corpus, from 0
    error: str


_NAMED = 5  # documents of a batch that an error names
OnFailure = Callable[[Failure], None] | None


class Shard(NamedTuple):
    """Documents that follow each other."""

    number: int
    first: int  #: number of the first document
    size: int  #: how many documents, those in batches that were given too
    documents: list[Any]
    digest: str


@dataclass(frozen=True)
class Document:
    """One text as the model takes it."""

    number: int
    inputs: Mapping[str, list[int]]  #: each has one number for each position
    text: str | None = None
    cut: bool = False  #: whether it was longer

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])

    def row(self, name: str, length: int, padding: int) -> list[int]:
        """One of its inputs, padded on the right."""
        if name not in self.inputs:
            raise RegardError(f"it has no {name!r}, which others have that are read with it")
        row = self.inputs[name]
        return [*row, *[padding] * (length - len(row))]


class Corpus:
    """Documents, and how they become batches; the same documents always become the same batches.

    A document is a text, a list or tensor of token numbers, a dictionary with `input_ids` or a
    text, or a batch of examples: a `Batch`, or a dictionary whose `input_ids` have two axes. In a
    shard, documents of one length come together; batches that are given stay as they are.

    >>> corpus = Corpus([[5, 6, 7], [8, 9], [1, 2, 3]], batch_size=2)
    >>> [batch.real.sum(1).tolist() for batch in corpus]
    [[2, 3], [3]]

    Args:
        source: a list, an iterator, a dataset, the path of a file or a list of paths: lines (.txt),
            .jsonl or .parquet (needs pyarrow); lines and .jsonl may be compressed (.gz). Blank
            lines are no documents.
        tokenizer: one of transformers, which texts need; it also labels tokens: `special`,
            `punctuation`, `word` and `category`.
        column: of a dictionary or a table, what has the text, unless it has `input_ids`.
        labels: a function of a `Batch` that gives labels of its positions by name, (batch,
            position): booleans mark some of them, whole numbers are segments.
        max_length: most tokens of a document; what is longer is cut, and counted. A document has
            all of its tokens when None.
        batch_size: most documents that the model reads together.
        shard_size: documents whose numbers are saved together.
    """

    def __init__(
        self,
        source: Any,
        tokenizer: Any = None,
        *,
        column: str = "text",
        labels: Callable[[Batch], Labels] | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        shard_size: int = 1024,
    ) -> None:
        for name, value in (
            ("batch_size", batch_size),
            ("shard_size", shard_size),
            ("max_length", 1 if max_length is None else max_length),
        ):
            if type(value) is not int or value < 1:
                raise RegardError(f"corpus: {name}={value!r}, expected a whole number from 1")
        self.source = Source(source, column)
        self.tokenizer, self.column, self.labels = tokenizer, column, labels
        self.max_length, self.batch_size, self.shard_size = max_length, batch_size, shard_size
        has_table = hasattr(tokenizer, "convert_ids_to_tokens")
        self.table = TokenTable(tokenizer) if has_table else None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides which batches there are."""
        names = ("column", "max_length", "batch_size", "shard_size")
        settings = {name: getattr(self, name) for name in names}
        labels = None if self.labels is None else getattr(self.labels, "__qualname__", "labels")
        tokenizer = None if self.tokenizer is None else type(self.tokenizer).__name__
        vocabulary = None if self.table is None else self.table.digest
        return settings | {"tokenizer": tokenizer, "vocabulary": vocabulary, "labels": labels}

    def __iter__(self) -> Iterator[Batch]:
        """All batches, one after the other."""
        for shard in self.shards():
            yield from map(self.batch, self.groups(shard))

    def shards(self) -> Iterator[Shard]:
        """All shards. Documents are read as they come, and not kept."""
        documents, first = iter(self.source), 0
        for number in itertools.count():
            some: list[Any] = []
            size = 0
            for item in documents:
                some.append(item)
                size += _size(item)
                if size >= self.shard_size:
                    break
            if not some:
                return
            yield Shard(number, first, size, some, digest_of(some))
            first += size

    def groups(
        self, shard: Shard, on_failure: OnFailure = None
    ) -> Iterator[Batch | list[Document]]:
        """What becomes the batches of a shard: documents to read together, or a batch that was
        given.

        Args:
            shard: from `shards`.
            on_failure: told of documents that the model cannot read; None raises an error that
                names the document.
        """
        documents: list[Document] = []
        encodings = self._encodings(shard)
        number = shard.first
        for item in shard.documents:
            with naming(range(number, number + _size(item)), on_failure):
                if _is_batch(item):
                    yield _numbered(item, number)
                else:
                    documents.append(self._document(number, item, encodings.get(number)))
            number += _size(item)
        documents.sort(key=lambda document: (len(document), document.number))
        for start in range(0, len(documents), self.batch_size):
            yield documents[start : start + self.batch_size]

    def batch(self, group: Batch | Sequence[Document]) -> Batch:
        """The batch that a group becomes, with what a tokenizer and the caller know of it."""
        return self._labelled(group if isinstance(group, Batch) else self.joined(group))

    def joined(self, documents: Sequence[Document]) -> Batch:
        """One batch of documents, padded on the right."""
        longest = max(len(document) for document in documents)
        padding = {"input_ids": getattr(self.tokenizer, "pad_token_id", None) or 0}
        names = {name for document in documents for name in document.inputs}
        inputs = {}
        for name in sorted(names):
            rows = [document.row(name, longest, padding.get(name, 0)) for document in documents]
            inputs[name] = torch.tensor(rows)
        return Batch(
            inputs,
            real=inputs["attention_mask"] > 0,
            tokens=inputs["input_ids"],
            numbers=[document.number for document in documents],
            texts=[document.text for document in documents],
            n_cut=sum(document.cut for document in documents),
        )

    # -- documents

    def _encodings(self, shard: Shard) -> dict[int, Mapping[str, list[int]]]:
        """Texts of a shard as token numbers, by document; nothing where one of them fails, so that
        each is read alone."""
        texts = {
            number: text
            for number, item in enumerate(shard.documents, shard.first)
            if isinstance(text := self._text(item), str)
        }
        if self.table is None or len(texts) < len(shard.documents):
            return {}
        try:
            encoded = self.tokenizer(list(texts.values()))
        except Exception:
            return {}  # told of the document that is the cause, in `_document`
        columns = [name for name, rows in encoded.items() if len(rows) == len(texts)]
        return {
            number: {name: encoded[name][index] for name in columns}
            for index, number in enumerate(texts)
        }

    def _text(self, item: Any) -> Any:
        """The text of a document; None where it has token numbers."""
        if isinstance(item, Mapping):
            return None if "input_ids" in item else item.get(self.column)
        return item if isinstance(item, str) else None

    def _document(
        self, number: int, item: Any, encoding: Mapping[str, list[int]] | None
    ) -> Document:
        if isinstance(item, Unreadable):
            raise RegardError(item.error)
        text = self._text(item)
        if text is not None:
            inputs = encoding or self._tokenised(text)
        elif isinstance(item, Mapping):
            inputs = self._given(item)
        elif isinstance(item, list | tuple | Tensor):
            inputs = {"input_ids": _numbers(item)}
        else:
            raise RegardError(
                f"it is a {type(item).__name__}, expected a text, token numbers or a dictionary"
            )
        inputs = {name: list(row) for name, row in inputs.items()}
        length = len(inputs["input_ids"])
        if not length:
            raise RegardError("it has no tokens")
        cut = self.max_length is not None and length > self.max_length
        if cut:
            inputs = self._cut(text, inputs)
        inputs.setdefault("attention_mask", [1] * len(inputs["input_ids"]))
        return Document(number, inputs, text, cut)

    def _given(self, item: Mapping[str, Any]) -> dict[str, list[int]]:
        """The rows of a dictionary that have one number for each token."""
        if "input_ids" not in item:
            raise RegardError(
                f"it has {', '.join(map(repr, item)) or 'no keys'}, expected 'input_ids' or a text "
                f"in {self.column!r}"
            )
        numbers = _numbers(item["input_ids"])
        rows = {"input_ids": numbers}
        for name in ("attention_mask", "token_type_ids", "position_ids"):
            if name in item and len(item[name]) == len(numbers):
                rows[name] = _numbers(item[name])
        return rows

    def _tokenised(self, text: Any, **options: Any) -> Mapping[str, list[int]]:
        if not isinstance(text, str):
            raise RegardError(f"its {self.column} is {text!r:.40}, expected a text")
        if self.tokenizer is None:
            raise RegardError("it is a text, which needs a tokenizer: collect(..., tokenizer=...)")
        encoded = self.tokenizer(text, **options)
        return encoded if isinstance(encoded, Mapping) else {"input_ids": _numbers(encoded)}

    def _cut(self, text: str | None, inputs: dict[str, list[int]]) -> dict[str, list[int]]:
        """Its first tokens, with the special ones that a tokenizer puts at the end."""
        if text is not None and self.table is not None:
            encoded = self._tokenised(text, truncation=True, max_length=self.max_length)
            return {name: list(row) for name, row in encoded.items()}
        return {name: row[: self.max_length] for name, row in inputs.items()}

    def _labelled(self, batch: Batch) -> Batch:
        """The same batch with what a tokenizer and the caller know of its positions."""
        if self.table is not None and batch.tokens is not None:
            labels = self.table.labels(batch.tokens.cpu(), batch.real.cpu())
            batch = replace(batch, labels={**labels, **batch.labels}, spelled=self.table.spelled)
        if self.labels is not None:
            batch = replace(batch, labels={**batch.labels, **self.labels(batch)})
        return batch


@contextmanager
def naming(numbers: Sequence[int], on_failure: OnFailure) -> Iterator[None]:
    """Errors name their documents, or are told of where somebody listens."""
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        if not isinstance(error, RegardError):
            reason = f"{type(error).__name__}: {reason}"
        if on_failure is None:
            named = ", ".join(map(str, sorted(numbers)[:_NAMED])) + ", …" * (len(numbers) > _NAMED)
            raise RegardError(f"document{'s' * (len(numbers) > 1)} {named}: {reason}") from error
        for number in numbers:
            on_failure(Failure(number, reason))


def _numbers(row: Any) -> list[int]:
    numbers = row.tolist() if isinstance(row, Tensor) else list(row)
    if not all(type(number) is int for number in numbers):
        raise RegardError(f"its tokens are {row!r:.60}, expected whole numbers")
    return numbers


def _is_batch(item: Any) -> bool:
    """Whether a document is a batch of several."""
    if isinstance(item, Batch):
        return True
    rows = item.get("input_ids") if isinstance(item, Mapping) else None
    if isinstance(rows, Tensor):
        return rows.dim() == 2
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], list | Tensor)


def _size(item: Any) -> int:
    if not _is_batch(item):
        return 1
    return len(item) if isinstance(item, Batch) else len(item["input_ids"])


def _numbered(item: Any, first: int) -> Batch:
    """A batch that was given, with numbers for its examples."""
    if not isinstance(item, Batch):
        inputs = {name: torch.as_tensor(value) for name, value in item.items()}
        tokens = inputs["input_ids"]
        real = inputs.get("attention_mask", torch.ones_like(tokens)) > 0
        item = Batch(inputs, real=real, tokens=tokens)
    numbered: Batch = replace(item, numbers=range(first, first + len(item)))
    return numbered
