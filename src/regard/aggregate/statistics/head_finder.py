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

#: The patterns, and what the key of each is called.
_KEYS = {
    "previous": "the previous word",
    "next": "the next word",
    "same": "its other occurrences",
    "first": "its first occurrence",
}
_MARKS: dict[str, Marks] = {"▁": "sentencepiece", "Ġ": "byte_level", "##": "wordpiece"}
_BLOCK = 64  # query words whose rows are made together
_SHOWN = 10  # heads that a printed ranking lists

Word = str | int
ByWord = Float[Tensor, "head query_word key_word"]


@dataclass(frozen=True)
class HeadMatch:
    """What one head gives: the share of the query word's attention that goes to the key word."""

    layer: int | None  #: None where several attentions have the same layer number
    head: int
    name: str  #: the site, as in the trace
    query: str
    key: str
    weight: float  #: from 0 to 1; the mean over queries where several were asked about

    def __str__(self) -> str:
        share = f"{100 * self.weight:.0f} %"
        return f"{self.query} → {self.key} {share} in {self.layer_name} head {self.head}"

    @property
    def layer_name(self) -> str:
        """Its layer in words, or its site where the number would not tell."""
        return self.name if self.layer is None else f"layer {self.layer}"


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
        shown = self.matches[:_SHOWN]
        width = max(len(match.layer_name) for match in shown)
        lines = [
            f"{match.layer_name:{width}}  {match.head:4}  {100 * match.weight:5.1f} %  {match.key}"
            for match in shown
        ]
        rest = len(self) - len(lines)
        return "\n".join(
            [
                str(self[0]),
                f"{'':{width}}  head   weight  to",
                *lines,
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
        query: a word, its n-th occurrence as "it#2", or the position of a token, which means its
            word; the mean over all other words when None.
        key: the same, of the word that is attended to.
        pattern: instead of a key, "previous" or "next" word, other occurrences of the "same" word,
            or its "first" occurrence; without a query, the mean over the words that have one.
        words: the words of the text, as `Words` or a list of tokens, or a pair of them for queries
            and keys; by default the tokens of the trace.
        special: whether special tokens ([CLS], </s>) may be keys. Weights are shares of all the
            query's attention in either case.
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
    numbers, by_site = layer_numbers(layers)
    textual = isinstance(query, str) or isinstance(key, str) or pattern in ("same", "first")
    matches: list[HeadMatch] = []
    missing: list[RegardError] = []
    answered = False
    skipped = 0
    for number, layer in zip(numbers, layers):
        _check_example(layer, example)
        sides = _sides(layer, words, example, textual)
        if sides is None or (pattern in ("previous", "next") and sides[0] is not sides[1]):
            skipped += 1
            continue
        try:
            question = _Question(*sides, query, key, pattern, special)
        except RegardError as error:  # this text lacks the word; that of another layer may have it
            missing.append(error)
            continue
        answered = True
        matches += question.matches(None if by_site else number, layer, example)
    if missing and not answered:
        batch = layers[0].recipe.shape.batch
        hint = f"; example= chooses another of the {batch} texts" if batch > 1 else ""
        raise RegardError("; ".join(dict.fromkeys(map(str, missing))) + hint)
    if not answered:
        raise RegardError(_without_words(layers, words, pattern))
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
        asked = range(len(queries.names)) if query is None else [queries.index(query, "query=")]
        self.target = None if key is None else self.keys.index(key, "key=")

        def own(word: int) -> bool:
            return self.target is not None and self._own(word) == self.target

        self.asked = [
            word
            for word in asked
            if query is not None or special or word not in queries.special
            if query is not None or not own(word)
            if pattern is None or bool(self._targets([word]).any())
        ]
        if not self.asked:
            raise RegardError(f"pattern={pattern!r}: no word has {_KEYS[pattern or 'same']}")

    def matches(self, number: int | None, layer: Layer, example: int) -> Iterator[HeadMatch]:
        """A match for each head of a layer."""
        totals: Tensor | None = None
        for start in range(0, len(self.asked), _BLOCK):
            block = self.asked[start : start + _BLOCK]
            by_word = self._by_word(layer, block, example)
            if self.key is None and self.pattern is None:
                yield from self._partners(number, layer, by_word[:, 0])
                return
            gained = (by_word * self._targets(block).to(by_word.device)).sum((1, 2))
            totals = gained if totals is None else totals + gained
        assert totals is not None
        key = (
            self.keys.names[self.target]
            if self.target is not None
            else _KEYS[self.pattern or "same"]
        )
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
        self, number: int | None, layer: Layer, rows: Float[Tensor, "head key_word"]
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
    if pattern is not None and pattern not in _KEYS:
        raise RegardError(f"pattern={pattern!r}, expected one of {', '.join(_KEYS)}")
    if key is not None and pattern is not None:
        raise RegardError(f"key={key!r} and pattern={pattern!r}: expected one of the two")
    if query is None and key is None and pattern is None:
        raise RegardError("find: expected a query, a key or a pattern")


def _check_example(layer: Layer, example: int) -> None:
    if not 0 <= example < layer.recipe.shape.batch:
        batch = layer.recipe.shape.batch
        raise RegardError(f"{layer.name}: example={example}, but the batch has {batch}")


def _sides(layer: Layer, words: Any, example: int, textual: bool) -> tuple[Words, Words] | None:
    """The words of queries and keys; None where there are none for these positions."""
    batch, _, *sizes = layer.recipe.shape
    if words is None:
        record = layer.record
        if record is not None and record.query_tokens and record.key_tokens:
            pair = (record.query_tokens, record.key_tokens)
        elif textual:
            return None
        else:  # positions alone
            queries, keys = ([str(position) for position in range(size)] for size in sizes)
            pair = (queries, keys)
            batch = 1  # the same names serve every example
        words = pair if pair[0] != pair[1] else pair[0]
    sides = [_words(side, example, batch) for side in (words if _is_pair(words) else (words,))]
    if [len(sides[0].pieces), len(sides[-1].pieces)] != sizes:
        return None
    return sides[0], sides[-1]


def _is_pair(words: Any) -> bool:
    """Whether queries and keys have words of their own."""
    return isinstance(words, tuple) and len(words) == 2 and not isinstance(words[0], str)


def _words(words: Any, example: int, batch: int) -> Words:
    """Words of tokens: pieces are joined where their marks tell."""
    if isinstance(words, Words):
        return words
    if example and batch > 1 and not nested(words):
        raise RegardError(
            f"find: example={example}, but the tokens are those of one text; give a list of tokens "
            f"for each of the {batch} examples, or words= of this one"
        )
    tokens = list(words[example] if nested(words) else words)
    special = [is_special(token) for token in tokens]
    for prefix, marks in _MARKS.items():
        if any(token.startswith(prefix) and len(token) > len(prefix) for token in tokens):
            return Words.from_marks(tokens, marks, special)
    return Words.each(tokens, special)


def _same(word: str, other: str) -> bool:
    return word.casefold() == other.casefold()


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
