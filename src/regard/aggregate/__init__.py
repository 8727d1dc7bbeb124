"""Ways to combine weights: pieces of words to words."""

from regard.aggregate.words import Words

__all__ = ["Words"]
