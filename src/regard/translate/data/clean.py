"""Cleaning of pairs: what is removed is counted.

>>> pairs = [Pair("Go.", "Va !"), Pair("Go.", "Va !"), Pair("Oh", ""), Pair("OK", "OK")]
>>> cleaned = clean(pairs, Cleaning(identical=True))
>>> cleaned.pairs
[Pair(source='Go.', target='Va !', line=0)]
>>> print(cleaned.report)
pairs read  4
empty       1
identical   1
duplicate   1
pairs kept  1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from regard.errors import RegardError
from regard.translate.data.pairs import Pair


@dataclass(frozen=True)
class Cleaning:
    """Which pairs are left out. Those with an empty side always are.

    Args:
        longest: those with more words than this on either side; words are what spaces separate.
        ratio: those whose longer side has more than this many times the words of the shorter, one
            word added to both sides, so that short sentences have some room.
        identical: those whose sides are the same.
        duplicates: those that came before.
    """

    longest: int | None = None
    ratio: float | int | None = None
    identical: bool = False
    duplicates: bool = True

    def __post_init__(self) -> None:
        if self.longest is not None and self.longest < 1:
            raise RegardError(f"longest={self.longest}, expected at least 1")
        if self.ratio is not None and not self.ratio >= 1:
            raise RegardError(f"ratio={self.ratio}, expected at least 1")


@dataclass(frozen=True)
class CleaningReport:
    """How many pairs were read, and how many were left out for which reason.

    A pair counts once, for the first reason in the order of the table.
    """

    read: int
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """How many are left."""
        return self.read - sum(self.dropped.values())

    def __str__(self) -> str:
        rows = {"pairs read": self.read, **self.dropped, "pairs kept": self.kept}
        width = max(map(len, rows)) + 2
        digits = len(f"{self.read:,}")
        return "\n".join(f"{name:<{width}}{count:>{digits},}" for name, count in rows.items())


class CleaningResult(NamedTuple):
    """What is left, and what was left out."""

    pairs: list[Pair]
    report: CleaningReport


def clean(pairs: Iterable[Pair], cleaning: Cleaning | None = None) -> CleaningResult:
    """Leave pairs out, in one pass; the order of the others stays.

    Args:
        pairs: the pairs; a file of pairs will do, and is read as it is cleaned.
        cleaning: which to leave out; the empty and the doubled when None.
    """
    cleaner = Cleaner(Cleaning() if cleaning is None else cleaning)
    kept = list(cleaner.kept(pairs))
    return CleaningResult(kept, cleaner.report)


class Cleaner:
    """Cleans pairs one by one, and counts.

    Args:
        cleaning: which pairs to leave out.
        remembered: how many pairs duplicates are looked for among; then it begins anew. All when
            None.
    """

    def __init__(self, cleaning: Cleaning, remembered: int | None = None) -> None:
        self.cleaning = cleaning
        self.remembered = remembered
        self.read = 0
        self.dropped = dict.fromkeys(_reasons(cleaning), 0)

    def kept(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """The pairs that are not left out; none of before these is remembered."""
        seen: set[tuple[str, str]] = set()
        for pair in pairs:
            self.read += 1
            if self.remembered is not None and len(seen) >= self.remembered:
                seen.clear()
            reason = _reason(pair, self.cleaning, seen)
            if reason is None:
                yield pair
            else:
                self.dropped[reason] += 1

    @property
    def report(self) -> CleaningReport:
        """How many pairs were left out so far."""
        return CleaningReport(self.read, dict(self.dropped))


def _reasons(cleaning: Cleaning) -> list[str]:
    asked = {
        "empty": True,
        "too long": cleaning.longest is not None,
        "length ratio": cleaning.ratio is not None,
        "identical": cleaning.identical,
        "duplicate": cleaning.duplicates,
    }
    return [reason for reason, wanted in asked.items() if wanted]


def _reason(pair: Pair, cleaning: Cleaning, seen: set[tuple[str, str]]) -> str | None:
    """Why a pair is left out; None when it stays."""
    source, target = pair.source.split(), pair.target.split()
    short, long = sorted((len(source), len(target)))
    if not short:
        return "empty"
    if cleaning.longest is not None and long > cleaning.longest:
        return "too long"
    if cleaning.ratio is not None and long + 1 > cleaning.ratio * (short + 1):
        return "length ratio"
    if cleaning.identical and source == target:
        return "identical"
    if cleaning.duplicates:
        key = (" ".join(source), " ".join(target))
        if key in seen:
            return "duplicate"
        seen.add(key)
    return None
