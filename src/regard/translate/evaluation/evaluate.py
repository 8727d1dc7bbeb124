"""All scores of one or two systems in one call: what `regard score` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.translate.evaluation.compare import Comparison, SentenceDifference, compare, differing
from regard.translate.evaluation.scores import Bucket, EvaluationOptions, Scores, buckets, score


@dataclass(frozen=True)
class Evaluation:
    """The scores of a system, and its comparison with another if there is one.

    | field           | meaning                                                         |
    |-----------------|-----------------------------------------------------------------|
    | `scores`        | BLEU and chrF of all sentences                                  |
    | `buckets`       | the same by sentence length                                     |
    | `other_buckets` | those of the other system                                       |
    | `comparison`    | both systems under each metric, with significance               |
    | `differing`     | the sentences on which they differ most                         |
    """

    scores: Scores
    buckets: list[Bucket]
    other_buckets: list[Bucket]
    comparison: list[Comparison]
    differing: list[SentenceDifference]


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
    *,
    other: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> Evaluation:
    """Score translations, by sentence length too, and compare them with another system's.

    Args:
        hypotheses: the translations.
        references: a reference translation for each.
        options: the defaults of `EvaluationOptions` when None.
        other: translations of another system.
        sources: the source sentences; buckets are then by their lengths.
    """
    options = EvaluationOptions() if options is None else options

    def by_length(texts: Sequence[str] | None) -> list[Bucket]:
        if texts is None or not options.edges:
            return []
        return buckets(texts, references, options, sources=sources)

    scores = score(hypotheses, references, options)
    lengths = by_length(hypotheses), by_length(other)
    if other is None:
        return Evaluation(scores, *lengths, [], [])
    systems = hypotheses, other, references
    return Evaluation(scores, *lengths, compare(*systems, options), differing(*systems, options))
