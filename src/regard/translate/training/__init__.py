"""Training: one loop for every model, resumable at any step with bit-identical results."""

from regard.translate.training.folder import RunFolder, read_log
from regard.translate.training.loop import TrainingProgress, Validation, Watcher
from regard.translate.training.loss import cross_entropy
from regard.translate.training.run import TrainingResult, train
from regard.translate.training.schedules import forcing_at, rate_factor
from regard.translate.training.scoring import FinalScores, score_pairs, translate_texts

__all__ = [
    "FinalScores",
    "RunFolder",
    "TrainingProgress",
    "TrainingResult",
    "Validation",
    "Watcher",
    "cross_entropy",
    "forcing_at",
    "rate_factor",
    "read_log",
    "score_pairs",
    "train",
    "translate_texts",
]
