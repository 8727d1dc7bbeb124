"""Attention you can see, measure, change and reuse, in any PyTorch model."""

from importlib import import_module
from types import ModuleType

from regard import masks
from regard.aggregate import (
    ResidualStream,
    alti,
    attention_flow,
    combine_heads,
    gradient_attention,
    mean_attention,
    norm_attention,
    relevance,
    rollout,
)
from regard.contract import Attended, Mechanism
from regard.corpus import Statistic, collect
from regard.editing import EditWarning, edit, knockout, patch
from regard.errors import RegardError
from regard.grafting import graft
from regard.heads import head_importance, prune
from regard.kernel.attend import attend
from regard.kernel.reduce import reduce
from regard.kernel.reducers import (
    Distance,
    EffectiveKeys,
    Entropy,
    FullWeights,
    HeadMax,
    HeadMean,
    HeadMin,
    Histogram,
    QueryRows,
    ReceivedAttention,
    SegmentWeights,
    TopK,
    WeightedSum,
)
from regard.kernel.reducers.base import Reducer
from regard.recipe import Recipe
from regard.record import Record, Trace, load_trace
from regard.tracing import CaptureWarning, capture, register_recipe, stitch, trace

__version__ = "0.1.0"

_FAMILIES = (
    "aggregate",
    "blocks",
    "corpus",
    "editing",
    "explain",
    "grafting",
    "heads",
    "mechanisms",
    "plots",
    "reuse",
    "testing",
    "translate",
    "viewer",
)


def __getattr__(name: str) -> ModuleType:
    """Families are imported when they are first used: `regard.mechanisms.MultiHead`."""
    if name in _FAMILIES:
        return import_module(f"regard.{name}")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")


__all__ = [
    "Attended",
    "CaptureWarning",
    "Distance",
    "EditWarning",
    "EffectiveKeys",
    "Entropy",
    "FullWeights",
    "HeadMax",
    "HeadMean",
    "HeadMin",
    "Histogram",
    "Mechanism",
    "QueryRows",
    "ReceivedAttention",
    "Recipe",
    "Record",
    "Reducer",
    "RegardError",
    "ResidualStream",
    "SegmentWeights",
    "Statistic",
    "TopK",
    "Trace",
    "WeightedSum",
    "alti",
    "attend",
    "attention_flow",
    "capture",
    "collect",
    "combine_heads",
    "edit",
    "gradient_attention",
    "graft",
    "head_importance",
    "knockout",
    "load_trace",
    "masks",
    "mean_attention",
    "norm_attention",
    "patch",
    "prune",
    "reduce",
    "register_recipe",
    "relevance",
    "rollout",
    "stitch",
    "trace",
]
