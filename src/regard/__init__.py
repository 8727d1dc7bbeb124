"""Attention you can see, measure and reuse, in any PyTorch model."""

from importlib import import_module
from types import ModuleType

from regard import masks
from regard.aggregate import (
    Around,
    alti,
    flow,
    fuse,
    gradient_attention,
    head_importance,
    mean_attention,
    norm_attention,
    prune,
    relevance,
    rollout,
)
from regard.contract import Attended, Mechanism
from regard.errors import RegardError
from regard.kernel.attend import attend
from regard.kernel.reduce import Reducer
from regard.kernel.reducers import (
    Apply,
    Distance,
    Entropy,
    HeadMax,
    HeadMean,
    HeadMin,
    Histogram,
    Mass,
    Received,
    Rows,
    Support,
    TopK,
    Weights,
)
from regard.kernel.tiles import reduce
from regard.recipe import Recipe
from regard.record import Record, Trace, load
from regard.reuse import graft
from regard.tracing import CaptureWarning, capture, register_recipe, stitch, trace

__version__ = "0.1.0"

_FAMILIES = (
    "aggregate",
    "blocks",
    "explain",
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
    "Apply",
    "Around",
    "Attended",
    "CaptureWarning",
    "Distance",
    "Entropy",
    "HeadMax",
    "HeadMean",
    "HeadMin",
    "Histogram",
    "Mass",
    "Mechanism",
    "Received",
    "Recipe",
    "Record",
    "Reducer",
    "RegardError",
    "Rows",
    "Support",
    "TopK",
    "Trace",
    "Weights",
    "alti",
    "attend",
    "capture",
    "flow",
    "fuse",
    "gradient_attention",
    "graft",
    "head_importance",
    "load",
    "masks",
    "mean_attention",
    "norm_attention",
    "prune",
    "reduce",
    "register_recipe",
    "relevance",
    "rollout",
    "stitch",
    "trace",
]
