"""Which word each piece belongs to, where words are those of the tokeniser."""

from __future__ import annotations

from collections.abc import Sequence

from regard.aggregate import Words
from regard.translate.vocabulary.tokenise import token_spans


def grouped(
    text: str, offsets: Sequence[tuple[int, int]], pieces: Sequence[str], special: Sequence[bool]
) -> Words:
    """The words of a text over its pieces, so that "t'aime" is two.

    A piece that reaches over several words makes one of them. A piece of space belongs to the word
    behind it.

    Args:
        text: what the pieces spell.
        offsets: where each lies in it.
        pieces: the pieces.
        special: which of them are special; each is a word of its own.
    """
    spans = token_spans(text)
    owners = _owners(text, spans)
    reached = [
        None if skip or not spans else _reached(text, owners, *span)
        for span, skip in zip(offsets, special)
    ]
    glued = {word for reach in reached if reach for word in range(*reach)}  # to the next
    firsts = list(range(len(spans)))
    for word in range(1, len(spans)):
        if word - 1 in glued:
            firsts[word] = firsts[word - 1]
    lasts = {first: word for word, first in enumerate(firsts)}
    numbers: list[int] = []
    names: list[str] = []
    places: dict[int, int] = {}
    marked: set[int] = set()
    for index, (reach, skip) in enumerate(zip(reached, special)):
        key = firsts[reach[0]] if reach else -1 - index
        if key not in places:
            places[key] = len(names)
            name = text[spans[key][0] : spans[lasts[key]][1]] if reach else pieces[index]
            names.append(name)
            if skip:
                marked.add(places[key])
        numbers.append(places[key])
    return Words(names, list(numbers), list(pieces), frozenset(marked))


def _owners(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each character its word; for a space that of the next one, or the last."""
    owners: list[int] = []
    for word, (_, end) in enumerate(spans):
        owners += [word] * (end - len(owners))
    return owners + [len(spans) - 1] * (len(text) - len(owners))


def _reached(text: str, owners: Sequence[int], start: int, end: int) -> tuple[int, int]:
    """The first and last word that a piece reaches."""
    while start < end - 1 and text[start].isspace():
        start += 1
    return owners[start], owners[end - 1]
