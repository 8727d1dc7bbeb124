"""Scores by sentence length: does a system fail on long sentences?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.translate.evaluation.options import EvaluationOptions
from regard.translate.evaluation.scores import Score, check_parallel, has_bleu, score


@dataclass(frozen=True)
class Bucket:
    """Scores of the sentences in a range of lengths.

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
        """The range of lengths in words, as text."""
        if self.high is None:
            return f"{self.low} and more"
        return f"{self.low} to {self.high - 1}" if self.high - self.low > 1 else str(self.low)


def buckets(
    hypotheses: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
    *,
    sources: Sequence[str] | None = None,
) -> list[Bucket]:
    """Scores by sentence length, in words separated by spaces.

    >>> options = EvaluationOptions(edges=(3,))
    >>> by_length = buckets(["a b", "a b c d"], ["a b", "a b x d"], options)
    >>> [(bucket.name, bucket.sentences) for bucket in by_length]
    [('0 to 2', 1), ('3 and more', 1)]

    Args:
        hypotheses: the translations.
        references: a reference translation for each.
        options: `edges`, case and tokeniser; the defaults of `EvaluationOptions` when None.
        sources: the source sentences; lengths are then theirs, else those of the references.
    """
    options = EvaluationOptions() if options is None else options
    measured = references if sources is None else sources
    side = "references" if sources is None else "sources"
    check_parallel(**{"hypotheses": hypotheses, "references": references, side: measured})
    lengths = [len(text.split()) for text in measured]
    by_length = []
    for low, high in zip((0, *options.edges), (*options.edges, None)):
        chosen = [i for i, n in enumerate(lengths) if n >= low and (high is None or n < high)]
        outputs, targets = ([texts[i] for i in chosen] for texts in (hypotheses, references))
        scores = score(outputs, targets, options) if chosen else None
        bleu = scores.bleu if scores and has_bleu(targets, options) else None
        by_length.append(Bucket(low, high, len(chosen), bleu, scores.chrf if scores else None))
    return by_length
