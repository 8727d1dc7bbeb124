"""How good translations are: BLEU and chrF, by length, and two systems side by side."""

from regard.translate.evaluation.buckets import Bucket, buckets
from regard.translate.evaluation.compare import (
    RESAMPLES,
    Compared,
    Comparison,
    Differing,
    compare,
    differing,
)
from regard.translate.evaluation.scores import TOKENIZERS, Score, Scores, score

__all__ = [
    "RESAMPLES",
    "TOKENIZERS",
    "Bucket",
    "Compared",
    "Comparison",
    "Differing",
    "Score",
    "Scores",
    "buckets",
    "compare",
    "differing",
    "score",
]
