"""Texts all in capitals: translated as sentences, and written in capitals again.

A model of pieces reads "I LOVE YOU" as other pieces than "I love you", and learned few of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from regard.aggregate import Words
from regard.translate.alignment import Matrix
from regard.translate.translation import Translation

_LETTERS = 4  # fewer are an acronym, or "OK"


def in_capitals(text: str) -> bool:
    """Whether all letters are capitals, and more than an acronym has.

    >>> [in_capitals(text) for text in ("STOP!", "OK", "No U-turn", "止まれ止まれ")]
    [True, False, False, False]
    """
    letters = [letter for letter in text if letter.isalpha()]
    return len(letters) >= _LETTERS and all(map(str.isupper, letters))


def as_sentence(text: str) -> str:
    """A text in capitals in small letters, but for its first letter and the English "I".

    >>> as_sentence("“TODAY I'M HERE!”")
    "“Today I'm here!”"
    """
    small = re.sub(r"\b(?!I\b)\w+", lambda word: word[0].lower(), text)
    return re.sub(r"\w", lambda letter: letter[0].upper(), small, count=1)


def with_capitals(translation: Translation, source: str) -> Translation:
    """The translation of `as_sentence(source)` as that of `source`: words of both in capitals."""
    sides = [replace(words, names=_capital(words.names, words)) for words in translation.words]

    def capital(matrix: Matrix | None, rows: Words) -> Matrix | None:
        if matrix is None:
            return None
        columns = _capital(matrix.source, sides[0])
        return Matrix(matrix.weights, columns, _capital(matrix.target, rows))

    return replace(
        translation,
        source=source,
        text=translation.text.upper(),
        words=(sides[0], sides[1]),
        matrix=capital(translation.matrix, sides[1]),
        inside=capital(translation.inside, sides[0]),
        read_as=translation.source,
    )


def _capital(names: Sequence[str], words: Words) -> list[str]:
    """Names in capitals, but for those of special words, as the end is."""
    special = {words.names[number] for number in words.special}
    return [name if name in special else name.upper() for name in names]
