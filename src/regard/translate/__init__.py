"""Translation whose alignments can be read: data, models, training, search, alignment, scores."""

from regard.translate.alignment import align
from regard.translate.translator import Translation, Translator

__all__ = ["Translation", "Translator", "align"]
