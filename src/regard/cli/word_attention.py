"""What one word of a text attends to: its clearest heads, its rows, and the map of one head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate import HeadMatch, Words
from regard.aggregate.statistics.token_positions import is_special
from regard.errors import RegardError
from regard.kernel.reducers import Offsets, QueryRows
from regard.record import Record, Trace

_ALWAYS = 0.9  # of the attention at one distance: what such a head does, it does for every word
_SINK = 0.25  # of the attention, in the mean over heads, on the first word of a causal model
_LEAST = 0.01  # of the attention of a row that is renormalised; noise would fill it otherwise
_DISTANCES = {-1: "the word before it", 0: "itself", 1: "the word after it"}


@dataclass(frozen=True)
class HeadChoice:
    """Which heads an option chose: of one layer, of one number, one head, or any."""

    layer: int | None = None
    head: int | None = None

    def checked(self, records: Sequence[Record]) -> HeadChoice:
        """The same, within what was captured."""
        heads = max(record.shape.heads for record in records)
        for option, number, size in (
            ("--layer", self.layer, len(records)),
            ("--head", self.head, heads),
        ):
            if number is not None and not 0 <= number < size:
                raise RegardError(f"{option} {number} is not from 0 to {size - 1}")
        return self

    def holds(self, layer: int, head: int) -> bool:
        """Whether a head is among the chosen ones."""
        return self.layer in (None, layer) and self.head in (None, head)


@dataclass(frozen=True)
class RankedHead:
    """A head by its place among the layers, and what it gives."""

    layer: int
    match: HeadMatch

    @property
    def name(self) -> str:
        """The layer and the head as the options take them."""
        return f"layer {self.layer} head {self.match.head}"


@dataclass(frozen=True)
class WordAttention:
    """The heads of a text, and what one of its words attends to in each of them.

    Special tokens are no words: in the table they share a row, in the map they are left out and
    rows are divided by the rest. So is the first word of a causal model where it is a sink.
    """

    records: list[Record]
    words: Words  #: with what is set aside marked as special
    word: int
    to: int | None = None
    choice: HeadChoice = HeadChoice()
    sink: str | None = None  #: the first word, if it is set aside

    @classmethod
    def of(
        cls,
        records: list[Record],
        words: Words,
        word: str | None,
        to: str | None,
        choice: HeadChoice,
    ) -> WordAttention:
        """What a word attends to; by default the second word, or the last one of a causal model."""
        if len(words.without_special().names) < 2:
            words = replace(words, special=frozenset())  # there is nothing else to look at
        causal = not any(
            bool(record.reduce(QueryRows([0]))[0][..., 1:].any()) for record in records
        )
        index = _index(words, word, causal)
        target = None
        if to is not None:
            ordinary = words.without_special()
            target = words.pieces[ordinary.pieces.index(ordinary.index(to, "--to "))]
        asked = cls(records, words, index, target, choice.checked(records))
        shares = causal and word != words.names[0] and not asked.signed
        return asked._without_sink() if shares else asked

    @property
    def signed(self) -> bool:
        """Whether weights may be negative, and so are no shares of a whole."""
        return any(record.kind == "signed" for record in self.records)

    @property
    def name(self) -> str:
        """The word."""
        return self.words.names[self.word]

    @property
    def reference(self) -> str:
        """The word as `--word` takes it: with its number where it is not the first of its kind."""
        copies = [name.casefold() == self.name.casefold() for name in self.words.names[: self.word]]
        return f"{self.name}#{sum(copies) + 1}" if any(copies) else self.name

    @cached_property
    def ranking(self) -> list[RankedHead]:
        """All chosen heads, the clearest first, but for those in `habitual`."""
        return [head for head in self._matches if self._key(head) not in self.habitual]

    @cached_property
    def habitual(self) -> dict[tuple[int, int], str]:
        """Heads left out of the ranking, since each word in them looks at the same distance; none
        where heads were chosen."""
        if self.to is not None or self.choice != HeadChoice() or self.signed:
            return {}
        habits = dict(_habits(self.records))
        return habits if len(habits) < len(self._matches) else {}

    @cached_property
    def _matches(self) -> list[RankedHead]:
        if self.signed:
            heads = list(self._signed_matches())
            return sorted(heads, key=lambda head: -abs(head.match.weight))
        position = self.words.pieces.index(self.word)
        key = None if self.to is None else self.words.pieces.index(self.to)
        layers = {record.name: index for index, record in enumerate(self.records)}
        ranking = Trace(self.records).find(position, key, words=self.words)
        heads = [RankedHead(layers[match.name], match) for match in ranking]
        return [head for head in heads if self.choice.holds(*self._key(head))]

    def _signed_matches(self) -> Iterator[RankedHead]:
        """For each chosen head the weight of the largest size, or that on the asked word."""
        ordinary = self.words.without_special()
        own, asked = (
            None if word is None else ordinary.pieces[self.words.pieces.index(word)]
            for word in (self.word, self.to)
        )
        others = [column for column in range(len(ordinary.names)) if column != own]
        for layer, (record, rows) in enumerate(zip(self.records, self.rows)):
            for head, row in enumerate(rows[:, : len(ordinary.names)]):
                if not self.choice.holds(layer, head) or not others:
                    continue
                column = others[int(row[others].abs().argmax())] if asked is None else asked
                name, weight = ordinary.names[column], float(row[column])
                yield RankedHead(
                    layer, HeadMatch(layer, head, record.name, self.name, name, weight)
                )

    @staticmethod
    def _key(head: RankedHead) -> tuple[int, int]:
        return head.layer, head.match.head

    @property
    def shown(self) -> tuple[int, int]:
        """Layer and head of the map: the clearest, or the only one."""
        if self.ranking:
            return self._key(self.ranking[0])
        return self.choice.layer or 0, self.choice.head or 0

    @cached_property
    def rows(self) -> list[Float[Tensor, "head word_or_rest"]]:
        """For each layer the word's attention to every word, and at last to what is set aside."""
        pieces = [piece for piece, word in enumerate(self.words.pieces) if word == self.word]
        table = self.words.pooled_special()
        return [
            table.sum(record.reduce(QueryRows(pieces))[0][0].float()).mean(1)
            for record in self.records
        ]

    @property
    def row_names(self) -> list[str]:
        """The words of `rows`."""
        return self.words.pooled_special("special tokens").names

    @property
    def set_aside(self) -> list[str]:
        """Names of what is left out of the map."""
        return list(dict.fromkeys(self.words.names[word] for word in sorted(self.words.special)))

    @cached_property
    def map(self) -> Float[Tensor, "word word"]:
        """The map of the clearest head over ordinary words, renormalised; empty where under 1 %
        of a row is left."""
        layer, head = self.shown
        weights = self.records[layer].recipe.at(0, head).weights()[0, 0]  # (query, key)
        ordinary = self.words.without_special().merge(weights.float())
        left = ordinary.sum(-1, keepdim=True)
        if not self.words.special or self.signed:
            return ordinary
        return torch.where(left < _LEAST, 0.0, ordinary / torch.where(left == 0, 1.0, left))

    @cached_property
    def renormalised(self) -> float | None:
        """What the map has for the word and the partner of the finding; None where nothing is set
        aside, or the word has no row."""
        ordinary = self.words.without_special()
        row, column = (
            None if word is None else ordinary.pieces[self.words.pieces.index(word)]
            for word in (self.word, self.to)
        )
        if not self.words.special or self.signed or row is None or not bool(self.map[row].any()):
            return None
        others = self.map[row].clone()
        others[row] = 0.0  # its strongest partner is another word
        return float(self.map[row, column] if column is not None else others.max())

    @property
    def names(self) -> list[str]:
        """The words of the map."""
        return self.words.without_special().names

    def as_dict(self) -> dict[str, Any]:
        """The finding as data: all heads, and the map of the clearest one."""
        layer, head = self.shown
        return {
            "words": self.words.names,
            "set_aside": sorted(self.words.special),
            "word": self.name,
            "heads": [{**asdict(each.match), "layer": each.layer} for each in self.ranking],
            "habitual": [
                {"layer": key[0], "head": key[1], "looks_at": habit}
                for key, habit in self.habitual.items()
            ],
            "map": {
                "layer": layer,
                "head": head,
                "words": self.names,
                "weights": self.map.tolist(),
                "renormalised": bool(self.words.special) and not self.signed,
                "share_of_pair": self.renormalised,
            },
        }

    def _without_sink(self) -> WordAttention:
        """The first word set aside too, where most of the word's attention goes there."""
        first = self.words.pieces[0]
        if first is None or first in self.words.special or self.word == first or self.to == first:
            return self
        ordinary = self.words.without_special().names
        received = torch.cat(
            [rows[:, ordinary.index(self.words.names[first])] for rows in self.rows]
        )
        if len(ordinary) < 3 or float(received.mean()) < _SINK:
            return self
        marked = replace(self.words, special=self.words.special | {first})
        return replace(self, words=marked, sink=self.words.names[first])


def words_of_positions(count: int) -> Words:
    """Positions as words, for a model whose tokens are unknown."""
    return Words.each([str(position) for position in range(count)])


def pieces_of(words: Words) -> Words:
    """Every piece a word of its own; those of special tokens, or spelt like them, are special."""
    special = [
        word in words.special or is_special(token)
        for word, token in zip(words.pieces, words.tokens)
    ]
    return Words.each(words.tokens, special)


def _index(words: Words, word: str | None, causal: bool) -> int:
    if word is not None:
        return words.index(word, "--word ")
    ordinary = [index for index in range(len(words.names)) if index not in words.special]
    return ordinary[-1 if causal else min(1, len(ordinary) - 1)]


def _habits(records: Sequence[Record]) -> Iterator[tuple[tuple[int, int], str]]:
    """Heads in which every word looks at the same distance, and where that is."""
    for layer, record in enumerate(records):
        size = record.shape.keys
        sums = record.reduce(Offsets())[0][0]  # (head, offset), over all queries
        for distance, name in _DISTANCES.items():
            pairs = size - abs(distance)
            if pairs < 2:
                continue
            for head, total in enumerate(sums[:, size - 1 + distance].tolist()):
                if total / pairs >= _ALWAYS:
                    yield (layer, head), name
