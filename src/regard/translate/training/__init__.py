"""Training: one loop for every model, that can be stopped anywhere and goes on exactly."""

from regard.translate.training.final_scores import FinalScores
from regard.translate.training.folder import RunFolder
from regard.translate.training.logs import read_log
from regard.translate.training.loss import cross_entropy
from regard.translate.training.run import Trained, train
from regard.translate.training.schedules import forcing_at, rate_factor
from regard.translate.training.validation import score_pairs, translate_texts
from regard.translate.training.watch import Now, Validated, Watcher

__all__ = [
    "FinalScores",
    "Now",
    "RunFolder",
    "Trained",
    "Validated",
    "Watcher",
    "cross_entropy",
    "forcing_at",
    "rate_factor",
    "read_log",
    "score_pairs",
    "train",
    "translate_texts",
]
