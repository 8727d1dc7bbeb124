"""Scores by the length of sentences: does a system fail on long ones?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from regard.errors import RegardError
from regard.translate.evaluation.scores import Score, Tokenizer, check_parallel, has_bleu, score

EDGES = (10, 20, 30, 40, 50)


@dataclass(frozen=True)
class Bucket:
    """The sentences of some lengths, and what their translations score.

    | field  | meaning                                                                        |
    |--------|--------------------------------------------------------------------------------|
    | `low`  | words of the shortest sentences that belong here                               |
    | `high` | one more than those of the longest; None where there is no end                 |
    | `bleu` | None where no reference has the four words that BLEU counts: even a perfect    |
    |        | translation would have 0 there; None also where there is no sentence           |
    | `chrf` | None where no sentence has such a length                                       |
    """

    low: int
    high: int | None
    sentences: int
    bleu: Score | None
    chrf: Score | None

    @property
    def name(self) -> str:
        """The lengths in words, as a person says them."""
        if self.high is None:
            return f"{self.low} and more"
        return f"{self.low} to {self.high - 1}" if self.high - self.low > 1 else str(self.low)


def buckets(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    edges: Sequence[int] = EDGES,
    lower: bool = False,
    tokenizer: Tokenizer = "13a",
) -> list[Bucket]:
    """Scores of the sentences of each length, in words between spaces.

    >>> made = buckets(["a b", "a b c d"], ["a b", "a b x d"], edges=(3,))
    >>> [(bucket.name, bucket.sentences) for bucket in made]
    [('0 to 2', 1), ('3 and more', 1)]

    Args:
        hypotheses: the translations.
        references: what each should have been.
        sources: what was translated; its length counts then, that of the reference otherwise.
        edges: the lengths at which a new bucket begins, rising.
        lower: as for `score`.
        tokenizer: as for `score`.
    """
    measured = references if sources is None else sources
    named = "references" if sources is None else "sources"
    check_parallel(**{"hypotheses": hypotheses, "references": references, named: measured})
    bounds = [0, *edges]
    if not all(low < high for low, high in pairwise(bounds)):
        raise RegardError(f"edges={tuple(edges)}, expected rising numbers above 0")
    lengths = [len(text.split()) for text in measured]
    made = []
    for low, high in zip(bounds, [*edges, None]):
        chosen = [i for i, n in enumerate(lengths) if n >= low and (high is None or n < high)]
        said, right = ([texts[i] for i in chosen] for texts in (hypotheses, references))
        found = score(said, right, lower=lower, tokenizer=tokenizer) if chosen else None
        bleu = found.bleu if found and has_bleu(right, tokenizer) else None
        made.append(Bucket(low, high, len(chosen), bleu, found.chrf if found else None))
    return made
