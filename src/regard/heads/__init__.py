"""What acts on a model's heads: importance, learned gates, masks, pruning."""

from regard.anatomy.head_sites import HeadSite, head_sites
from regard.heads.gates import HardConcrete, LearnedGates, learn_gates
from regard.heads.head_mask import head_mask
from regard.heads.importance import HeadImportance, head_importance
from regard.heads.prune import PruningResult, prune

__all__ = [
    "HardConcrete",
    "HeadImportance",
    "HeadSite",
    "LearnedGates",
    "PruningResult",
    "head_importance",
    "head_mask",
    "head_sites",
    "learn_gates",
    "prune",
]
