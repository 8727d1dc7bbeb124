"""Scores of translations: BLEU, chrF, by length, and two systems compared."""

from regard.translate.evaluation.compare import (
    Comparison,
    SentenceDifference,
    SystemScore,
    compare,
    differing,
)
from regard.translate.evaluation.evaluate import Evaluation, evaluate
from regard.translate.evaluation.scores import (
    TOKENIZERS,
    Bucket,
    EvaluationOptions,
    Score,
    Scores,
    buckets,
    score,
)

__all__ = [
    "TOKENIZERS",
    "Bucket",
    "Comparison",
    "Evaluation",
    "EvaluationOptions",
    "Score",
    "Scores",
    "SentenceDifference",
    "SystemScore",
    "buckets",
    "compare",
    "differing",
    "evaluate",
    "score",
]
