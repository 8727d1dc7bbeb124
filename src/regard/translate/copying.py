"""Words that a translation copies from its source: unknown words, bytes that spell no character,
and numbers it got wrong.

A number of the translation is wrong if the source has not got it, while a number of the source is
missing. Each is replaced by the source word that it attends to most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from regard.translate.tokens import NAMES, UNKNOWN

_GROUPS = re.compile(r"(?<=\d)[ \u00a0\u202f.,'’](?=\d{3}(?!\d))")  # between thousands
_ADDRESS = re.compile(r"\b(?:\w+://|www\.|[\w.+-]+@)[^\s<>«»“”]*[\w/]")
NO_CHARACTER = "\ufffd"  #: what bytes that spell no character are decoded as


def needs_copies(source: str, text: str) -> bool:
    """Whether a translation has words to copy."""
    return (
        NAMES[UNKNOWN] in text
        or NO_CHARACTER in text
        or bool(_wrong(source, text) and missing_numbers(source, text))
    )


def missing_numbers(source: str, text: str) -> list[str]:
    """The numbers of a source that its translation has not got, however thousands are written.

    >>> missing_numbers("1,200 of 3 000 in 1999", "1 200 de 3000")
    ['1999']
    """
    translated = {*_numbers(text)}
    return [number for number in _numbers(source) if number not in translated]


def missing_addresses(source: str, text: str) -> list[str]:
    """The web and mail addresses of a source that its translation has not got.

    >>> missing_addresses("Write to tom@example.com, or see www.example.com.", "Écrivez à tom@exa")
    ['tom@example.com', 'www.example.com']
    """
    return [address for address in _ADDRESS.findall(source) if address not in text]


def copies(
    names: Sequence[str],
    source_names: Sequence[str],
    weights: Float[Tensor, "target source"],
) -> dict[int, str]:
    """The words to replace, by their place in the translation.

    Args:
        names: the words of the translation.
        source_names: those of the source.
        weights: attention between them.
    """
    text, source = " ".join(names), " ".join(source_names)
    missing = missing_numbers(source, text)
    replaced: dict[int, str] = {}
    unreadable = False
    for place, name in enumerate(names):
        candidates: list[int] = []
        if unreadable and NO_CHARACTER in name:  # the next byte of the same character
            replaced[place] = ""
            continue
        unreadable = NO_CHARACTER in name
        if name == NAMES[UNKNOWN] or unreadable:
            candidates = list(range(len(source_names)))
        elif _wrong(source, name):
            candidates = [
                number
                for number, word in enumerate(source_names)
                if any(run in missing for run in _numbers(word))
            ]
        if not candidates:
            continue
        best = max(candidates, key=lambda number: float(weights[place, number]))
        replaced[place] = source_names[best]
        missing = [run for run in missing if run not in _numbers(source_names[best])]
    return replaced


def with_copies(text: str, names: Sequence[str], replaced: dict[int, str]) -> str:
    """A text whose words `names` are, with some of them replaced."""
    result, end = "", 0
    for place, name in enumerate(names):
        start = text.find(name, end)
        if start < 0:  # written otherwise than it is named
            continue
        result += text[end:start] + replaced.get(place, name)
        end = start + len(name)
    return result + text[end:]


def _wrong(source: str, text: str) -> bool:
    """Whether a text has a number that the source has not got."""
    return not {*_numbers(text)} <= {*_numbers(source)}


def _numbers(text: str) -> list[str]:
    """The runs of digits; thousands apart are one."""
    return re.findall(r"\d+", _GROUPS.sub("", text))
