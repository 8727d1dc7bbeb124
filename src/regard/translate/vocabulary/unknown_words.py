"""Words that a vocabulary has no token for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.aggregate import Words
from regard.translate.tokens import UNKNOWN

_BYTE = re.compile("<0x[0-9A-F]{2}>")  # how sentencepiece spells what it has no piece for


def unknown_words(numbers: Sequence[int], words: Words) -> list[str]:
    """The words that have an unknown token, or one that was spelt by its bytes.

    >>> from regard.translate.vocabulary import WordVocabulary
    >>> vocabulary = WordVocabulary.train(["the cat sleeps"], size=10)
    >>> text = "the elephant sleeps"
    >>> unknown_words(vocabulary.encode(text), vocabulary.words(text))
    ['elephant']

    Args:
        numbers: a text as numbers, without its end.
        words: its words, over those.
    """
    strange = {
        word
        for number, token, word in zip(numbers, words.tokens, words.pieces)
        if number == UNKNOWN or _BYTE.fullmatch(token)
    }
    return [name for word, name in enumerate(words.names) if word in strange]
