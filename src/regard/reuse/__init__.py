"""Layers that use the weights of an attention once more."""

from regard.reuse.concatenation import Concatenation
from regard.reuse.gated_flow import GatedFlow
from regard.reuse.grafting import (
    GateLayer,
    Grafted,
    GraftWarning,
    Latents,
    OutputAttention,
    ReuseLayer,
    States,
    ZeroProjection,
    graft,
    grafts,
)
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
    "GateLayer",
    "GatedFlow",
    "GraftWarning",
    "Grafted",
    "Latents",
    "LearnedHeadMix",
    "LowRankCode",
    "OffsetBins",
    "OutputAttention",
    "OwnProjections",
    "OwnSlices",
    "PositionSummaries",
    "ProjectedRows",
    "ReuseLayer",
    "Source",
    "States",
    "WeightedAggregation",
    "ZeroProjection",
    "graft",
    "grafts",
    "interpolated",
    "pooled",
    "source_of",
]
