"""Links as text: `0-0 1-2`, one line per sentence; `1p2` for a possible link."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import RegardError
from regard.files import write_text
from regard.translate.alignment.links import Links
from regard.translate.data.lines import lines

_LINK = re.compile(r"(\d+)([-p])(\d+)", re.ASCII)


@dataclass(frozen=True)
class Gold:
    """Gold links of a sentence: sure ones, and possible ones (which include the sure)."""

    sure: Links
    possible: Links

    @classmethod
    def of(cls, sure: Iterable[tuple[int, int]], possible: Iterable[tuple[int, int]] = ()) -> Gold:
        """Gold links; sure ones are added to the possible."""
        certain = frozenset(sure)
        return cls(certain, certain | frozenset(possible))


def parse_links(text: str, *, first: int = 0, place: str = "links") -> Gold:
    """One sentence's links.

    >>> found = parse_links("1-1 2p3", first=1)
    >>> sorted(found.sure), sorted(found.possible)
    ([(0, 0)], [(0, 0), (1, 2)])

    Args:
        text: links between spaces, `source-target`, or `sourceptarget` for a possible one.
        first: the number of the first word in this text, 0 or 1. In memory words count from 0.
        place: where the text is from, for errors.
    """
    _check_first(first)
    links: dict[str, set[tuple[int, int]]] = {"-": set(), "p": set()}
    for token in text.split():
        match = _LINK.fullmatch(token)
        if match is None:
            raise RegardError(f"{place}: {token!r:.40}, expected a link such as 0-0 or 0p1")
        source, target = int(match[1]) - first, int(match[3]) - first
        if min(source, target) < 0:
            raise RegardError(f"{place}: {token!r} has a word 0, but words count from {first}")
        links[match[2]].add((source, target))
    return Gold.of(links["-"], links["p"])


def write_pharaoh(links: Iterable[tuple[int, int]], *, first: int = 0) -> str:
    """One sentence's links as text, in order.

    >>> write_pharaoh({(1, 0), (0, 1)})
    '0-1 1-0'
    """
    _check_first(first)
    return " ".join(f"{source + first}-{target + first}" for source, target in sorted(links))


def read_links(path: str | os.PathLike[str], *, first: int = 0) -> list[Gold]:
    """Read a file of links, one line per sentence; an empty line is a sentence without links."""
    return [
        parse_links(line, first=first, place=f"{path}:{number}")
        for number, line in lines(Path(path))
    ]


def write_links(
    path: str | os.PathLike[str], sentences: Sequence[Iterable[tuple[int, int]]], *, first: int = 0
) -> None:
    """Write a file of links atomically, one line per sentence."""
    text = "".join(write_pharaoh(links, first=first) + "\n" for links in sentences)
    write_text(Path(path), text)


def _check_first(first: int) -> None:
    if first not in (0, 1):
        raise RegardError(f"first={first}, expected 0 or 1: the number of a sentence's first word")
