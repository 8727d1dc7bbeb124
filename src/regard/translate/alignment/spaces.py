"""Words separated by spaces, over the tokens of a vocabulary.

Files of links count these; a tokeniser also splits off punctuation and clitics.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from regard.aggregate import Words
from regard.translate.alignment.matrix import without_end
from regard.translate.tokens import UNKNOWN
from regard.translate.vocabulary import Vocabulary


def spaced_words(text: str, vocabulary: Vocabulary) -> Words:
    """The words of a text between spaces, over the tokens of `vocabulary.encode(text)`.

    >>> from regard.translate.vocabulary import WordVocabulary
    >>> words = spaced_words("I don't.", WordVocabulary([]))
    >>> words.names, words.pieces, words.tokens
    (['I', "don't."], [0, 1, 1, 1], ['I', 'do', "n't", '.'])

    Args:
        text: the text.
        vocabulary: what cuts it.
    """
    names = text.split()
    lengths = [sum(map(_letters, vocabulary.words(name).names)) for name in names]
    words = vocabulary.words(text)
    return _regrouped(words, [_letters(name) for name in words.names], names, lengths)


def spaced_words_of(numbers: Sequence[int], vocabulary: Vocabulary) -> Words:
    """The same over the pieces of numbers; the text is `vocabulary.decode(numbers)`, no end."""
    names = vocabulary.decode(numbers).split()
    words = without_end(vocabulary.words_of(numbers))
    written = _letters(vocabulary.decode([UNKNOWN]))  # which some write shorter than they name it
    shorter = _letters(vocabulary.pieces([UNKNOWN])[0]) - written
    letters = [0 if word in words.special else _letters(n) for word, n in enumerate(words.names)]
    for number, word in zip(numbers, words.pieces):
        if number == UNKNOWN and word is not None:
            letters[word] -= shorter
    return _regrouped(words, letters, names, [_letters(name) for name in names])


def _regrouped(
    words: Words, letters: Sequence[int], names: list[str], lengths: Sequence[int]
) -> Words:
    """Words put together as the letters lie: a tokeniser's word goes where its first letter is."""
    owners = [word for word, length in enumerate(lengths) for _ in range(length)]
    starts = accumulate(letters, initial=0)
    new_words = [owners[min(start, len(owners) - 1)] if owners else None for start in starts]
    pieces = [
        None if word is None or word in words.special else new_words[word] for word in words.pieces
    ]
    return Words(names, pieces, words.tokens)


def _letters(text: str) -> int:
    return sum(not letter.isspace() for letter in text)
