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

NO_CHARACTER = "\ufffd"  #: what bytes that spell no character are decoded as


def needs_copies(source: str, text: str) -> bool:
    """Whether a translation has words to copy."""
    return (
        NAMES[UNKNOWN] in text
        or NO_CHARACTER in text
        or bool(_wrong(source, text) and missing_numbers(source, text))
    )


def missing_numbers(source: str, text: str) -> list[str]:
    """The numbers of a source that its translation has not got."""
    return [run for run in re.findall(r"\d+", source) if run not in {*re.findall(r"\d+", text)}]


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
                if any(run in missing for run in re.findall(r"\d+", word))
            ]
        if not candidates:
            continue
        best = max(candidates, key=lambda number: float(weights[place, number]))
        replaced[place] = source_names[best]
        missing = [run for run in missing if run not in re.findall(r"\d+", source_names[best])]
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
    return not {*re.findall(r"\d+", text)} <= {*re.findall(r"\d+", source)}
