"""The spans of words in a text.

A word is a run of letters, marks and digits, which an apostrophe or hyphen may join; a Chinese
character alone; a symbol with all that belongs to it (an emoji of several code points, a flag). The
spaces before a word are its own, as tokenisers have it. Line ends stand for themselves.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from regard.errors import ShapeError

_JOINING = "'’-‐‑"
_HAN = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_LETTERS = re.compile(r"[^\s\u200b](?:.*[^\s\u200b])?", re.DOTALL)
_VISIBLE = str.maketrans({" ": "␣", "\t": "⇥"})

# Over a string that has one letter for the sort of each character (see `_sort`).
_SPANS = re.compile(
    r"(?P<ends>[sn]*n)"
    r"|s*(?P<core>"
    r"(?:w[mj]*)+(?:a(?:w[mj]*)+)*"  # letters, with marks and joiners among them
    r"|h[mj]*"
    r"|ff"  # two regional indicators: a flag
    r"|[^sn][mtg]*(?:j[^snwh][mtg]*)*"  # an emoji with its modifiers, joined to others
    r")"
    r"|(?P<rest>s+)"
)


class Span(NamedTuple):
    """A word with its leading spaces, and its name without them."""

    start: int
    end: int
    name_start: int  # without the spaces before it
    name_end: int


def word_spans(text: str) -> list[Span]:
    """The words of a text, one behind the other, each character in one of them."""
    sorts = "".join(map(_sort, text))
    spans = []
    for match in _SPANS.finditer(sorts):
        name = match.span("core") if match["core"] is not None else match.span()
        spans.append(Span(*match.span(), *name))
    return spans


def words_of_pieces(
    texts: Sequence[str],
    which: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
) -> list[tuple[int, int, int] | None]:
    """For each piece the text and the place of its word's name; None for a special token."""
    spans = [word_spans(text) for text in texts]
    owners = [
        [number for number, span in enumerate(text_spans) for _ in range(span.start, span.end)]
        for text_spans in spans
    ]
    reached = [
        None if skip else _reached_words(texts[number], owners[number], start, end)
        for number, (start, end), skip in zip(which, offsets, special)
    ]
    reached = _filled(reached, which, special)
    joined: set[tuple[int, int]] = set()  # a text's span that goes on in the next one
    for number, reach in zip(which, reached):
        if reach is not None:
            joined |= {(number, span) for span in range(*reach)}
    groups: list[tuple[int, int, int] | None] = []
    for number, reach in zip(which, reached):
        if reach is None:
            groups.append(None)
            continue
        first, last = reach
        while (number, first - 1) in joined:
            first -= 1
        while (number, last) in joined:
            last += 1
        groups.append((number, spans[number][first].name_start, spans[number][last].name_end))
    return groups


def _reached_words(
    text: str, owners: Sequence[int], start: int, end: int
) -> tuple[int, int] | None:
    """The first and last word that a piece reaches; None where it lies nowhere."""
    if not 0 <= start <= end <= len(text):
        raise ShapeError(
            f"a piece lies at ({start}, {end}) of a text of {len(text)} characters: is it the text "
            "that was cut into pieces?"
        )
    if start == end:
        return None
    letters = _LETTERS.search(text, start, end)
    if letters is None:  # blank: that of the word behind it, or a line end
        return owners[start], owners[start]
    return owners[letters.start()], owners[letters.end() - 1]


def _filled(
    reached: Sequence[tuple[int, int] | None], which: Sequence[int], special: Sequence[bool]
) -> list[tuple[int, int] | None]:
    """Pieces that lie nowhere and are not special go with the next one, or the one before."""
    filled = list(reached)
    for order in (range(len(filled) - 2, -1, -1), range(1, len(filled))):
        step = 1 if order.step < 0 else -1
        for index in order:
            beside = index + step
            same = which[index] == which[beside] and not special[index]
            if filled[index] is None and same and not special[beside]:
                filled[index] = filled[beside]
    return filled


def visible_name(name: str) -> str:
    """A word as it can be read: blanks of a word that is nothing else are made visible."""
    name = re.sub(r"\r\n?|\n", "↵", name.strip() or name)
    return name if name.strip("↵ \t") else name.translate(_VISIBLE)


def _sort(character: str) -> str:
    """What a character is: a letter for the pattern."""
    code = ord(character)
    if character in "\n\r":
        return "n"
    if character.isspace() or code == 0x200B:  # the zero-width space
        return "s"
    if any(first <= code <= last for first, last in _HAN):
        return "h"
    if character == "_" or character.isalnum():
        return "w"
    if character in _JOINING:
        return "a"
    if 0x1F1E6 <= code <= 0x1F1FF:
        return "f"
    if 0x1F3FB <= code <= 0x1F3FF:  # tones of skin
        return "t"
    if 0xE0020 <= code <= 0xE007F:  # tags, as of the flag of Scotland
        return "g"
    category = unicodedata.category(character)
    return "m" if category[0] == "M" else "j" if category == "Cf" else "p"
