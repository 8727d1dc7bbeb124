"""Modules on sets: learned queries, pooling, induced attention, the Perceiver."""

from regard.blocks.sets.fourier_features import FourierFeatures
from regard.blocks.sets.induced_block import InducedBlock
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.blocks.sets.perceiver import Perceiver
from regard.blocks.sets.pooling import Pooling
from regard.blocks.sets.set_block import SetBlock

__all__ = [
    "FourierFeatures",
    "InducedBlock",
    "LearnedQueries",
    "Perceiver",
    "Pooling",
    "SetBlock",
]
