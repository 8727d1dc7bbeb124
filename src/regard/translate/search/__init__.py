"""Greedy and beam search, for every translation model."""

from regard.translate.search.beam_search import Hypothesis, beam_search, beam_search_steps
from regard.translate.search.options import SearchOptions

__all__ = ["Hypothesis", "SearchOptions", "beam_search", "beam_search_steps"]
