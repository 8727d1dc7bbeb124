"""Statistics of attention over a corpus: `regard.collect`, and what it adds up."""

from regard.corpus.batch import Batch
from regard.corpus.collect import collect, default_statistics, load
from regard.corpus.collection import Collection
from regard.corpus.corpus import Corpus, Failure
from regard.corpus.engines import RayOptions
from regard.corpus.estimates import Binned, Estimate, Example, Strong
from regard.corpus.parts import Bins, Count, Largest, Mean, Part, Ratio, Strongest, Total
from regard.corpus.statistic import Attention, Statistic
from regard.corpus.statistics import (
    Agreement,
    Average,
    CategoryWeights,
    CoAttention,
    Drift,
    Figures,
    HeadFigures,
    HeadSharpness,
    Profile,
    Shares,
    Sharpness,
    StrongestPairs,
)
from regard.corpus.token_table import CATEGORIES

__all__ = [
    "CATEGORIES",
    "Agreement",
    "Attention",
    "Average",
    "Batch",
    "Binned",
    "Bins",
    "CategoryWeights",
    "CoAttention",
    "Collection",
    "Corpus",
    "Count",
    "Drift",
    "Estimate",
    "Example",
    "Failure",
    "Figures",
    "HeadFigures",
    "HeadSharpness",
    "Largest",
    "Mean",
    "Part",
    "Profile",
    "Ratio",
    "RayOptions",
    "Shares",
    "Sharpness",
    "Statistic",
    "Strong",
    "Strongest",
    "StrongestPairs",
    "Total",
    "collect",
    "default_statistics",
    "load",
]
