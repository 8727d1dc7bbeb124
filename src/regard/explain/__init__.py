"""Whether an attribution explains a model: faithfulness, agreement, other weights."""

from regard.explain.adversarial import Adversary, adversarial, jensen_shannon
from regard.explain.agreement import kendall
from regard.explain.baselines import gradient_norm, input_gradient, integrated_gradients
from regard.explain.evaluate import evaluate
from regard.explain.evaluation_result import Evaluation, Measurement
from regard.explain.intervals import Interval, bootstrap, sign_flips
from regard.explain.metrics import (
    BINS,
    Curve,
    area,
    comprehensiveness,
    deletion,
    insertion,
    sufficiency,
)
from regard.explain.recommend import recommend
from regard.explain.tasks.inputs import Inputs
from regard.explain.tasks.replacements import (
    AttentionMask,
    Deletion,
    Forbid,
    MaskToken,
    MeanEmbedding,
    Replacement,
    ZeroEmbedding,
)
from regard.explain.tasks.targets import Class, Similarity, Target
from regard.explain.tasks.task import Task

__all__ = [
    "BINS",
    "Adversary",
    "AttentionMask",
    "Class",
    "Curve",
    "Deletion",
    "Evaluation",
    "Forbid",
    "Inputs",
    "Interval",
    "MaskToken",
    "MeanEmbedding",
    "Measurement",
    "Replacement",
    "Similarity",
    "Target",
    "Task",
    "ZeroEmbedding",
    "adversarial",
    "area",
    "bootstrap",
    "comprehensiveness",
    "deletion",
    "evaluate",
    "gradient_norm",
    "input_gradient",
    "insertion",
    "integrated_gradients",
    "jensen_shannon",
    "kendall",
    "recommend",
    "sign_flips",
    "sufficiency",
]
