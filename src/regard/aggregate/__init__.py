"""Ways to combine weights: over heads, over layers, over pieces of words."""

from regard.aggregate.heads import fuse
from regard.aggregate.mean import mean_attention
from regard.aggregate.relevance import CrossRelevance, gradient_attention, relevance
from regard.aggregate.rollout import rollout
from regard.aggregate.words import Words

__all__ = [
    "CrossRelevance",
    "Words",
    "fuse",
    "gradient_attention",
    "mean_attention",
    "relevance",
    "rollout",
]
