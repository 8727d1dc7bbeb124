"""Layers that reuse the weights of an attention."""

from regard.reuse.concatenation import Concatenation
from regard.reuse.gated_flow import GatedFlow
from regard.reuse.heads import LearnedHeadMix, OwnProjections, OwnSlices
from regard.reuse.low_rank import LowRankCode
from regard.reuse.offsets import OffsetBins
from regard.reuse.rows import ProjectedRows, interpolated, pooled
from regard.reuse.source import Source, source_of
from regard.reuse.summaries import SUMMARIES, PositionSummaries
from regard.reuse.weighted_aggregation import WeightedAggregation

__all__ = [
    "SUMMARIES",
    "Concatenation",
    "GatedFlow",
    "LearnedHeadMix",
    "LowRankCode",
    "OffsetBins",
    "OwnProjections",
    "OwnSlices",
    "PositionSummaries",
    "ProjectedRows",
    "Source",
    "WeightedAggregation",
    "interpolated",
    "pooled",
    "source_of",
]
