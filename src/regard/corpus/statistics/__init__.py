"""Statistics that come with the library, one idea a file."""

from regard.corpus.statistics.average import Average
from regard.corpus.statistics.co_attention import CategoryWeights, CoAttention
from regard.corpus.statistics.comparisons import Agreement, Drift
from regard.corpus.statistics.figures import Figures, HeadFigures, Profile
from regard.corpus.statistics.shares import Shares
from regard.corpus.statistics.sharpness import HeadSharpness, Sharpness
from regard.corpus.statistics.strongest_pairs import StrongestPairs

__all__ = [
    "Agreement",
    "Average",
    "CategoryWeights",
    "CoAttention",
    "Drift",
    "Figures",
    "HeadFigures",
    "HeadSharpness",
    "Profile",
    "Shares",
    "Sharpness",
    "StrongestPairs",
]
