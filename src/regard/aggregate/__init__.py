"""Ways to combine weights: over heads, over layers, over pieces of words; and to weigh heads."""

from regard.aggregate.alti import alti
from regard.aggregate.attention_flow import attention_flow
from regard.aggregate.gates import HardConcrete, LearnedGates, learn_gates
from regard.aggregate.head_finder import HeadMatch, HeadRanking, find_heads
from regard.aggregate.heads import combine_heads
from regard.aggregate.importance import HeadImportance, head_importance
from regard.aggregate.layout import ResidualStream, Surroundings
from regard.aggregate.masking import head_mask
from regard.aggregate.mean import mean_attention
from regard.aggregate.norms import norm_attention
from regard.aggregate.prune import Pruned, prune
from regard.aggregate.relevance import CrossRelevance, gradient_attention, relevance
from regard.aggregate.report import HeadRow, Report
from regard.aggregate.rollout import rollout
from regard.aggregate.similarity import HeadDivergence, head_divergence
from regard.aggregate.sites import HeadSite, head_sites
from regard.aggregate.statistics import HeadStatistics, head_statistics
from regard.aggregate.words import Words

__all__ = [
    "CrossRelevance",
    "HardConcrete",
    "HeadDivergence",
    "HeadImportance",
    "HeadMatch",
    "HeadRanking",
    "HeadRow",
    "HeadSite",
    "HeadStatistics",
    "LearnedGates",
    "Pruned",
    "Report",
    "ResidualStream",
    "Surroundings",
    "Words",
    "alti",
    "attention_flow",
    "combine_heads",
    "find_heads",
    "gradient_attention",
    "head_divergence",
    "head_importance",
    "head_mask",
    "head_sites",
    "head_statistics",
    "learn_gates",
    "mean_attention",
    "norm_attention",
    "prune",
    "relevance",
    "rollout",
]
