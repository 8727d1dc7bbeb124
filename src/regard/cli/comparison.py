"""A text with and without some attention: words that may not attend to others, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import regard
from regard.aggregate import Words
from regard.cli.models import ModelRun, over_words
from regard.cli.packaged import LookResult
from regard.cli.word_attention import HeadChoice, WordAttention
from regard.editing import forbid
from regard.errors import RegardError
from regard.kernel.reducers import QueryRows
from regard.plots import Columns, Heatmap
from regard.record import Record
from regard.viewer import Page, page

RUNS = ("before", "after")


class ForbiddenPair(NamedTuple):
    """A word that may not attend to another, as `--forbid` names them."""

    query: str
    key: str
    queries: list[int]  #: positions of the first word
    keys: list[int]

    @classmethod
    def of(cls, text: str, words: Words) -> ForbiddenPair:
        """The pair of a text "it:animal", each word as `--word` takes it."""
        query, _, key = text.partition(":")
        if not query or not key:
            raise RegardError(f"--forbid {text!r}: expected two words, as it:animal")
        option = f"--forbid {text}: "
        return cls(query, key, *(_positions(words, word, option) for word in (query, key)))

    def check(self, records: Sequence[Record]) -> None:
        """Refuse a pair that never attends, such as a word and a later one of a causal model."""
        rows = [record.reduce(QueryRows(self.queries))[0][..., self.keys] for record in records]
        if not any(bool(weights.any()) for weights in rows):
            raise RegardError(
                f"--forbid {self.query}:{self.key}: {self.query!r} attends to {self.key!r} in no "
                "head, so there is nothing to forbid; a causal model sees earlier words only"
            )


def _positions(words: Words, word: str, option: str) -> list[int]:
    number = words.index(word, option)
    return [position for position, own in enumerate(words.pieces) if own == number]


@dataclass(frozen=True)
class Comparison:
    """What a word attends to in two runs over one text: as it is, and with pairs forbidden."""

    pairs: list[ForbiddenPair]
    result: LookResult  #: of the run with the pairs forbidden
    before: WordAttention
    after: WordAttention

    @classmethod
    def of(
        cls,
        run: ModelRun,
        before: LookResult,
        attention: WordAttention,
        pairs: list[ForbiddenPair],
    ) -> Comparison:
        """Run the model again without these pairs, in every head of the layers over the words."""
        paths = {record.path for record in attention.records}
        for pair in pairs:
            pair.check(attention.records)
        changes = [
            forbid(queries=pair.queries, keys=pair.keys, where=lambda site: site.path in paths)
            for pair in pairs
        ]
        with regard.edit(run.model, *changes, like=before.trace):
            result = run.look()
        return cls(pairs, result, attention, replace(attention, records=over_words(result)))

    @property
    def names(self) -> list[tuple[str, str]]:
        """The words that may not attend, and to which."""
        return [(pair.query, pair.key) for pair in self.pairs]

    @property
    def shown(self) -> WordAttention:
        """The head that is shown of the run before, in the one after."""
        return replace(self.after, choice=HeadChoice(*self.before.shown))

    def picture(self, before: Heatmap) -> Columns:
        """The maps of one head in both runs, and their difference."""
        after = self.shown.map
        most = max(float(before.values.abs().max()), float(after.abs().max())) or 1.0
        first = replace(before, title=RUNS[0], most=most)
        second = replace(first, values=after, title=RUNS[1])
        difference = Heatmap(
            after - before.values,
            *(before.rows, before.columns, "difference"),
            colour="diverging",
            value_title=f"{before.value_title}, after − before",
        )
        return Columns(
            [first, second, difference],
            f"{before.title}; without {', '.join(map(' → '.join, self.names))}",
        )

    def page(self, before: LookResult) -> Page:
        """Both runs and their difference on one page."""
        return page([before.trace, self.result.trace], runs=RUNS, **before.options())

    def as_dict(self) -> dict[str, Any]:
        """The pairs, and what was found without them, as data."""
        after = self.after.as_dict()
        return {
            "forbidden": [{"query": query, "key": key} for query, key in self.names],
            "after": {
                "heads": after["heads"],
                "map": self.shown.as_dict()["map"],
                "answer": self.result.answer,
            },
        }
