"""The text that tokens spell, read from the marks that tokenisers leave on them.

For tokenisers that do not say where their pieces lie. Tokens become bytes, since a piece may be a
part of a character.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from regard.errors import RegardError

Marks = Literal["wordpiece", "sentencepiece", "byte_level", "bytes"]
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def spelt(
    tokens: Sequence[str], marks: Marks, special: Sequence[bool]
) -> tuple[str, list[tuple[int, int]]]:
    """The text of tokens, and where each one lies in it; a special token lies nowhere."""
    if marks not in _READERS:
        raise RegardError(f"marks={marks!r}, expected one of {', '.join(_READERS)}")
    read = _READERS[marks]
    pieces = [b"" if skip else read(token) for token, skip in zip(tokens, special)]
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    character_of = []  # index of the character that each byte belongs to
    for index, character in enumerate(text):
        character_of += [index] * len(character.encode("utf-8", "surrogateescape"))
    offsets, start = [], 0
    for piece in pieces:
        end = start + len(piece)
        offsets.append((character_of[start], character_of[end - 1] + 1) if piece else (0, 0))
        start = end
    return re.sub("[\udc80-\udcff]", "\ufffd", text), offsets


def marks_of(vocabulary: Iterable[str]) -> Marks | None:
    """Which marks a vocabulary has; None where it has none that are known."""
    counts: dict[Marks, int] = {"wordpiece": 0, "sentencepiece": 0, "byte_level": 0}
    single = 0
    for token in vocabulary:
        counts["wordpiece"] += token.startswith("##") and len(token) > 2
        counts["sentencepiece"] += token.startswith("▁")
        counts["byte_level"] += token.startswith("Ġ")
        single += len(token) == 1 and ord(token) < 256
    best = max(counts, key=lambda marks: counts[marks])
    if counts[best] > 1:
        return best
    return "bytes" if single == 256 else None


def _word_piece(token: str) -> bytes:
    if token.startswith("##") and len(token) > 2:
        return _bytes(token[2:])
    return _bytes(f" {token}")


def _sentence_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else _bytes(token.replace("▁", " "))


def _byte_level(token: str) -> bytes:
    table = _byte_of_character()
    if any(character not in table for character in token):
        return _bytes(token)  # a token that was added to the vocabulary as it is
    return bytes(table[character] for character in token)


def _one_byte(token: str) -> bytes:
    return bytes([ord(token)]) if len(token) == 1 and ord(token) < 256 else _bytes(token)


_READERS: dict[str, Callable[[str], bytes]] = {
    "wordpiece": _word_piece,
    "sentencepiece": _sentence_piece,
    "byte_level": _byte_level,
    "bytes": _one_byte,
}


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's letters for bytes: visible Latin-1 stands for itself, the others follow from 256."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def _bytes(text: str) -> bytes:
    """A text in UTF-8; half a surrogate pair, which has no place there, becomes "?"."""
    return text.encode("utf-8", "replace")
