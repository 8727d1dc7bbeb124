"""The reducers that come with the library: questions answered without holding the matrix."""

from regard.kernel.reducers.maps import HeadMax, HeadMean, Weights
from regard.kernel.reducers.products import Apply, Distance, Mass, Received
from regard.kernel.reducers.rows import Entropy, Histogram, Rows, Support, Supported, Top, TopK

__all__ = [
    "Apply",
    "Distance",
    "Entropy",
    "HeadMax",
    "HeadMean",
    "Histogram",
    "Mass",
    "Received",
    "Rows",
    "Support",
    "Supported",
    "Top",
    "TopK",
    "Weights",
]
