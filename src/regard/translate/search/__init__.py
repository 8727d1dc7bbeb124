"""Greedy and beam search, for every translation model."""

from regard.translate.search.hypothesis import Hypothesis
from regard.translate.search.run import search, search_steps

__all__ = ["Hypothesis", "search", "search_steps"]
