"""Which heads make one word attend to another.

>>> import torch
>>> from regard.aggregate import find_heads
>>> following = torch.eye(4).roll(1, 1)[None]  # each token attends to the next one
>>> uniform = torch.full((1, 4, 4), 0.25)
>>> weights = torch.stack([uniform, following], 1)  # (batch, head, query, key)
>>> ranking = find_heads(weights, "that", "girl", words=["see", "that", "girl", "run"])
>>> print(ranking[0])
that → girl 100 % in layer 0 head 1
>>> find_heads(weights, pattern="next", words=["see", "that", "girl", "run"])[0].head
1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.aggregate.sources import Layer, layer_of, layers_of, outside_graph_and_autocast
from regard.aggregate.statistics.head_statistics import layer_numbers
from regard.aggregate.statistics.token_positions import is_special
from regard.aggregate.words.marks import Marks
from regard.aggregate.words.words import Words
from regard.errors import RegardError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import QueryRows
from regard.record import Trace
from regard.record.tokens import Tokens, nested
from regard.types import Kind

PATTERNS = ("previous", "next", "same", "first")
_MARKS: dict[str, Marks] = {"##": "wordpiece", "▁": "sentencepiece", "Ġ": "byte_level"}
_BLOCK = 64  # query words whose rows are made together
_SHOWN = 10  # heads that a printed ranking lists

Word = str | int
ByWord = Float[Tensor, "head query_word key_word"]


@dataclass(frozen=True)
class HeadMatch:
    """What one head gives: the share of the query word's attention that goes to the key word."""

    layer: int
    head: int
    name: str  #: the site, as in the trace
    query: str
    key: str
    weight: float  #: from 0 to 1; the mean over queries where several were asked about

    def __str__(self) -> str:
        share = f"{100 * self.weight:.0f} %"
        return f"{self.query} → {self.key} {share} in layer {self.layer} head {self.head}"


class HeadRanking(Sequence[HeadMatch]):
    """Heads, the strongest first. Printed: a sentence for the best, and a table of ten."""

    def __init__(self, matches: Sequence[HeadMatch], notes: Sequence[str] = ()) -> None:
        self.matches = sorted(matches, key=lambda match: -match.weight)
        self.notes = list(notes)  #: which attentions were left out

    def __len__(self) -> int:
        return len(self.matches)

    def __getitem__(self, index: Any) -> Any:
        return self.matches[index]

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns by name, as `pandas.DataFrame` takes them."""
        rows = [asdict(match) for match in self.matches]
        return {column: [row[column] for row in rows] for column in HeadMatch.__annotations__}

    def __repr__(self) -> str:
        if not self.matches:
            return "HeadRanking of no heads"
        width = max(len(match.key) for match in self.matches[:_SHOWN])
        lines = [
            f"{match.layer:5}  {match.head:4}  {100 * match.weight:5.1f} %  {match.key:{width}}"
            for match in self.matches[:_SHOWN]
        ]
        rest = len(self) - len(lines)
        return "\n".join(
            [
                str(self[0]),
                "layer  head   weight  to",
                *(line.rstrip() for line in lines),
                *([f"and {rest} more"] if rest > 0 else []),
                *self.notes,
            ]
        )


@outside_graph_and_autocast
def find_heads(
    attention: Any,
    query: Word | None = None,
    key: Word | None = None,
    *,
    pattern: str | None = None,
    words: Tokens | Words | tuple[Tokens | Words, Tokens | Words] | None = None,
    special: bool = False,
    example: int = 0,
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> HeadRanking:
    """Rank all heads by what one word gives another, or by a pattern.

    With a query alone each head is ranked by its strongest partner: the word that the query gives
    most, itself left out. Only the rows of the queries are computed, a few at a time.

    Args:
        attention: a Trace, a Record, or tensors, as for `combine_heads`.
        query: a word, its n-th occurrence as "it#2", or a position; all words when None.
        key: the same, of the word that is attended to.
        pattern: instead of a key, "previous" or "next" word, other occurrences of the "same" word,
            or its "first" occurrence.
        words: the words of the text, as `Words` or a list of tokens, or a pair of them for queries
            and keys; by default the tokens of the trace.
        special: whether special tokens ([CLS], </s>) are among the words. What the query gives
            them counts in either case: weights are shares of all its attention.
        example: which example of the batch.
        part: of an encoder–decoder model, "encoder", "decoder" or "cross"; all when None.
        axes: the order of a tensor's axes.
        kind: what the rows of tensors are.
    """
    _check_question(query, key, pattern)
    if isinstance(attention, Trace) and part is None:
        layers = [layer_of(record) for record in attention if record.site.axes_known]
    else:
        layers = layers_of(attention, axes=axes, kind=kind, part=part)
    layers = [layer for layer in layers if layer.recipe.kind in ("distribution", "partial")]
    numbers, _ = layer_numbers(layers)
    matches: list[HeadMatch] = []
    missing: list[RegardError] = []
    skipped = 0
    for number, layer in zip(numbers, layers):
        _check_example(layer, example)
        sides = _sides(layer, words, example)
        if sides is None or (pattern in ("previous", "next") and sides[0] is not sides[1]):
            skipped += 1
            continue
        try:
            question = _Question(*sides, query, key, pattern, special)
        except RegardError as error:  # this text lacks the word; that of another layer may have it
            missing.append(error)
            continue
        matches += question.matches(number, layer, example)
    if not matches:
        raise missing[0] if missing else RegardError(_without_words(layers, words, pattern))
    notes = [f"{skipped} attentions over other positions are left out"] if skipped else []
    return HeadRanking(matches, notes)


class _Question:
    """Which words of a text are asked about, and what counts as an answer."""

    def __init__(
        self,
        queries: Words,
        keys: Words,
        query: Word | None,
        key: Word | None,
        pattern: str | None,
        special: bool,
    ) -> None:
        self.queries = queries
        self.shared = queries is keys
        self.keys = keys if special else keys.without_special()
        self.query, self.key, self.pattern = query, key, pattern
        asked = range(len(queries.names)) if query is None else [_index(queries, query, "query")]
        self.target = None if key is None else _index(self.keys, key, "key")
        self.asked = [
            word
            for word in asked
            if query is not None or special or word not in queries.special
            if pattern is None or bool(self._targets([word]).any())
        ]
        if not self.asked:
            raise RegardError(f"pattern={pattern!r}: no word of {_listed(queries)} has such a key")

    def matches(self, number: int, layer: Layer, example: int) -> Iterator[HeadMatch]:
        """A match for each head of a layer."""
        totals: Tensor | None = None
        for start in range(0, len(self.asked), _BLOCK):
            block = self.asked[start : start + _BLOCK]
            by_word = self._by_word(layer, block, example)
            if self.key is None and self.pattern is None:
                yield from self._partners(number, layer, by_word[:, 0])
                return
            gained = (by_word * self._targets(block)).sum((1, 2))
            totals = gained if totals is None else totals + gained
        assert totals is not None
        key = self.keys.names[self.target] if self.target is not None else f"{self.pattern} word"
        query = "each word" if self.query is None else self.queries.names[self.asked[0]]
        for head, total in enumerate((totals / len(self.asked)).tolist()):
            yield HeadMatch(number, head, layer.name, query, key, total)

    def _by_word(self, layer: Layer, block: list[int], example: int) -> ByWord:
        """Weights of query words over key words: mean over query pieces, sum over key pieces."""
        pieces = [piece for piece, word in enumerate(self.queries.pieces) if word in block]
        rows: Tensor = reduce(layer.recipe, [QueryRows(pieces)])[0][example]  # (head, piece, key)
        order = {word: index for index, word in enumerate(block)}
        owners = torch.tensor([order[self.queries.pieces[piece]] for piece in pieces])  # type: ignore[index]
        merged = self.keys.sum(rows.float())  # (head, piece, key_word)
        words = merged.new_zeros(merged.shape[0], len(block), merged.shape[-1])
        words = words.index_add(1, owners.to(merged.device), merged)
        return words / owners.bincount()[:, None].to(merged)

    def _targets(self, block: list[int]) -> Bool[Tensor, "query_word key_word"]:
        """Which key words count for each query word."""
        targets = torch.zeros(len(block), len(self.keys.names), dtype=torch.bool)
        for row, word in enumerate(block):
            targets[row, self._target_words(word)] = True
        return targets

    def _target_words(self, word: int) -> list[int]:
        if self.target is not None:
            return [self.target]
        name = self.queries.names[word]
        own = self._own(word)
        if self.pattern in ("previous", "next"):
            if own is None:
                return []
            neighbour = own + (1 if self.pattern == "next" else -1)
            return [neighbour] if 0 <= neighbour < len(self.keys.names) else []
        copies = [key for key, other in enumerate(self.keys.names) if _same(other, name)]
        if self.pattern == "first":
            return [] if not copies or copies[0] == own else copies[:1]
        return [key for key in copies if key != own]

    def _own(self, word: int) -> int | None:
        """The query word's number among the keys, where both are one text."""
        if not self.shared:
            return None
        piece = self.queries.pieces.index(word)
        return self.keys.pieces[piece]

    def _partners(
        self, number: int, layer: Layer, rows: Float[Tensor, "head key_word"]
    ) -> Iterator[HeadMatch]:
        """For each head the key word with most weight, other than the query word itself."""
        own = self._own(self.asked[0])
        if own is not None:
            rows = rows.clone()
            rows[:, own] = -1.0
        best = rows.max(-1)
        query = self.queries.names[self.asked[0]]
        for head, (weight, key) in enumerate(zip(best.values.tolist(), best.indices.tolist())):
            if weight >= 0:
                yield HeadMatch(number, head, layer.name, query, self.keys.names[key], weight)


def _check_question(query: Word | None, key: Word | None, pattern: str | None) -> None:
    if pattern is not None and pattern not in PATTERNS:
        raise RegardError(f"pattern={pattern!r}, expected one of {', '.join(PATTERNS)}")
    if key is not None and pattern is not None:
        raise RegardError(f"key={key!r} and pattern={pattern!r}: expected one of the two")
    if query is None and key is None and pattern is None:
        raise RegardError("find: expected a query, a key or a pattern")


def _check_example(layer: Layer, example: int) -> None:
    if not 0 <= example < layer.recipe.shape.batch:
        batch = layer.recipe.shape.batch
        raise RegardError(f"{layer.name}: example={example}, but the batch has {batch}")


def _sides(layer: Layer, words: Any, example: int) -> tuple[Words, Words] | None:
    """The words of queries and keys; None where there are none for these positions."""
    if words is None:
        record = layer.record
        if record is None or record.query_tokens is None or record.key_tokens is None:
            return None
        pair = (record.query_tokens, record.key_tokens)
        words = pair if pair[0] != pair[1] else pair[0]
    sides = [_words(side, example) for side in (words if isinstance(words, tuple) else (words,))]
    queries, keys = sides[0], sides[-1]
    if (len(queries.pieces), len(keys.pieces)) != tuple(layer.recipe.shape[2:]):
        return None
    return queries, keys


def _words(words: Any, example: int) -> Words:
    """Words of tokens: pieces are joined where their marks tell."""
    if isinstance(words, Words):
        return words
    tokens = list(words[example] if nested(words) else words)
    special = [is_special(token) for token in tokens]
    for prefix, marks in _MARKS.items():
        if any(token.startswith(prefix) and len(token) > len(prefix) for token in tokens):
            return Words.from_marks(tokens, marks, special)
    marked = frozenset(place for place, flag in enumerate(special) if flag)
    return Words(tokens, list(range(len(tokens))), tokens, marked)


def _index(words: Words, word: Word, side: str) -> int:
    """The number of a word, given as a word, its n-th occurrence or a position."""
    if isinstance(word, int):
        size = len(words.pieces)
        if not -size <= word < size:
            raise RegardError(f"{side}={word} is outside the {size} positions")
        index = words.pieces[word]
        if index is None:
            raise RegardError(
                f"{side}={word} is the special token {words.tokens[word]!r}, which is no word; "
                "special=True makes it one"
            )
        return index
    for name, occurrence in _readings(word):
        copies = [index for index, other in enumerate(words.names) if _same(other, name)]
        if len(copies) >= occurrence:
            return copies[occurrence - 1]
    near = difflib.get_close_matches(word, words.names, n=3, cutoff=0.5)
    hint = f"; near: {', '.join(near)}" if near else ""
    raise RegardError(f"{side}={word!r} is not among the words: {_listed(words)}{hint}")


def _readings(word: str) -> Iterator[tuple[str, int]]:
    """A word as it stands, and "it#2" as the second "it"."""
    yield word, 1
    name, mark, number = word.rpartition("#")
    if mark and number.isdecimal() and int(number) > 0:
        yield name, int(number)


def _same(word: str, other: str) -> bool:
    return word.casefold() == other.casefold()


def _listed(words: Words) -> str:
    names = words.names
    return " ".join(names[:40]) + " …" * (len(names) > 40)


def _without_words(layers: list[Layer], words: Any, pattern: str | None) -> str:
    sizes = sorted({tuple(layer.recipe.shape[2:]) for layer in layers})
    if words is None:
        return (
            "find: the trace has no words; capture(model, tokens=…), trace.with_tokens(…), or "
            "words= give them"
        )
    if pattern in ("previous", "next"):
        return f"pattern={pattern!r}: no attention has queries and keys of one text"
    return f"find: the words fit none of the attentions, whose (queries, keys) are {sizes}"
