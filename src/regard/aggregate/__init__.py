"""Ways to combine weights: heads to one map, layers to one map, statistics, words."""

from regard.aggregate.combine_heads import combine_heads
from regard.aggregate.layers.alti import alti
from regard.aggregate.layers.attention_flow import attention_flow
from regard.aggregate.layers.mean import mean_attention
from regard.aggregate.layers.norms import norm_attention
from regard.aggregate.layers.relevance import CrossRelevance, gradient_attention, relevance
from regard.aggregate.layers.rollout import rollout
from regard.aggregate.statistics.head_divergence import HeadDivergence, head_divergence
from regard.aggregate.statistics.head_finder import HeadMatch, HeadRanking, find_heads
from regard.aggregate.statistics.head_statistics import HeadStatistics, head_statistics
from regard.aggregate.statistics.report import HeadRow, Report
from regard.aggregate.words.words import Words
from regard.anatomy.residual_stream import ResidualStream, Surroundings

__all__ = [
    "CrossRelevance",
    "HeadDivergence",
    "HeadMatch",
    "HeadRanking",
    "HeadRow",
    "HeadStatistics",
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
    "head_statistics",
    "mean_attention",
    "norm_attention",
    "relevance",
    "rollout",
]
