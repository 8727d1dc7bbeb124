"""The reducers that come with the library: questions answered without holding the matrix."""

from regard.kernel.reducers.maps import HeadMax, HeadMean, HeadMin, Weights
from regard.kernel.reducers.positions import Offsets, Repeats
from regard.kernel.reducers.products import Apply, Distance, GradientReceived, Mass, Received
from regard.kernel.reducers.rows import Entropy, Histogram, Rows, Support, Supported, Top, TopK

__all__ = [
    "Apply",
    "Distance",
    "Entropy",
    "GradientReceived",
    "HeadMax",
    "HeadMean",
    "HeadMin",
    "Histogram",
    "Mass",
    "Offsets",
    "Received",
    "Repeats",
    "Rows",
    "Support",
    "Supported",
    "Top",
    "TopK",
    "Weights",
]
