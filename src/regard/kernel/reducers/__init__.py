"""The reducers that come with the library: questions answered without holding the matrix."""

from regard.kernel.reducers.maps import FullWeights, HeadMax, HeadMean, HeadMin
from regard.kernel.reducers.positions import Offsets, Repeats
from regard.kernel.reducers.products import (
    Distance,
    OwnSegment,
    ReceivedAttention,
    ReceivedGradient,
    SegmentWeights,
    WeightedSum,
)
from regard.kernel.reducers.rows import (
    EffectiveKeys,
    Entropy,
    Histogram,
    KeyCounts,
    QueryRows,
    TopK,
    TopKeys,
)

__all__ = [
    "Distance",
    "EffectiveKeys",
    "Entropy",
    "FullWeights",
    "HeadMax",
    "HeadMean",
    "HeadMin",
    "Histogram",
    "KeyCounts",
    "Offsets",
    "OwnSegment",
    "QueryRows",
    "ReceivedAttention",
    "ReceivedGradient",
    "Repeats",
    "SegmentWeights",
    "TopK",
    "TopKeys",
    "WeightedSum",
]
