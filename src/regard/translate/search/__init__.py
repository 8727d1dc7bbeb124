"""Greedy and beam search, for every translation model."""

from regard.translate.search.beam_search import beam_search, beam_search_steps
from regard.translate.search.hypothesis import Hypothesis
from regard.translate.search.options import SearchOptions

__all__ = ["Hypothesis", "SearchOptions", "beam_search", "beam_search_steps"]
