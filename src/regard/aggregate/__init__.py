"""Ways to combine weights: heads to one map, layers to one map, statistics, words."""

from regard.aggregate.alti import alti
from regard.aggregate.attention_flow import attention_flow
from regard.aggregate.combine_heads import combine_heads
from regard.aggregate.mean import mean_attention
from regard.aggregate.norms import norm_attention
from regard.aggregate.relevance import CrossRelevance, gradient_attention, relevance
from regard.aggregate.report import HeadRow, Report
from regard.aggregate.rollout import rollout
from regard.aggregate.similarity import HeadDivergence, head_divergence
from regard.aggregate.statistics import HeadStatistics, head_statistics
from regard.aggregate.words import Words
from regard.anatomy.residual_stream import ResidualStream, Surroundings

__all__ = [
    "CrossRelevance",
    "HeadDivergence",
    "HeadRow",
    "HeadStatistics",
    "Report",
    "ResidualStream",
    "Surroundings",
    "Words",
    "alti",
    "attention_flow",
    "combine_heads",
    "gradient_attention",
    "head_divergence",
    "head_statistics",
    "mean_attention",
    "norm_attention",
    "relevance",
    "rollout",
]
