"""Links between words: rules that make them from weights, their text form, their error rate.

A link is (source word, target word), both counted from 0. As text it is `0-0`, one line per
sentence; `1p2` is a possible link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import RegardError
from regard.files import write_text
from regard.translate.data.lines import lines

Links = frozenset[tuple[int, int]]
Rule = Callable[[Tensor], Tensor]  #: weights (*rest, target, source) to the chosen pairs

Weights = Float[Tensor, "*rest target source"]
Chosen = Bool[Tensor, "*rest target source"]


def strongest(weights: Weights) -> Chosen:
    """For each target word the source word with the largest weight, the first if equal.

    A word without any weight (all of it is on the end of the sentence) gets no link.
    """
    if not weights.shape[-1]:
        return weights > 0
    return _peak(weights, -1) & (weights > 0)


def mutual(weights: Weights) -> Chosen:
    """The pairs whose weight is the largest of both its row and its column."""
    if not weights.shape[-2]:
        return weights > 0
    return strongest(weights) & _peak(weights, -2)


def above(threshold: float) -> Rule:
    """A rule: all pairs with at least this weight, so that a word may have several links."""
    if not 0.0 < threshold <= 1.0:
        raise RegardError(f"threshold={threshold}, expected above 0 and at most 1")

    def chosen(weights: Weights) -> Chosen:
        return weights >= threshold

    return chosen


RULES: Mapping[str, Rule] = MappingProxyType({"strongest": strongest, "mutual": mutual})


def rule_named(rule: Rule | str | float, option: str = "rule") -> Rule:
    """A rule by its name, or `above` for a number; a function is returned as it is.

    Errors call the rule by `option`.

    >>> rule_named("0.3")(torch.tensor([[0.2, 0.8], [0.4, 0.6]])).int()
    tensor([[0, 1],
            [1, 1]], dtype=torch.int32)
    """
    if callable(rule):
        return rule
    if rule in RULES:
        return RULES[str(rule)]
    try:
        return above(float(rule))
    except (ValueError, RegardError) as error:
        raise RegardError(
            f"{option} {rule}, expected {', '.join(RULES)} or a number above 0 and at most 1"
        ) from error


def links_of(chosen: Bool[Tensor, "target source"]) -> Links:
    """Chosen pairs of one sentence, as links.

    >>> sorted(links_of(strongest(torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.8, 0.2]]))))
    [(0, 0), (0, 2), (1, 1)]
    """
    return frozenset((source, target) for target, source in chosen.nonzero().tolist())


def flipped(links: Iterable[tuple[int, int]]) -> Links:
    """Links with source and target swapped, as needed for a model of the other direction.

    >>> sorted(flipped({(0, 2), (1, 1)}))
    [(1, 1), (2, 0)]
    """
    return frozenset((target, source) for source, target in links)


def _peak(weights: Weights, axis: int) -> Chosen:
    largest = weights.argmax(axis, keepdim=True)
    return torch.zeros_like(weights, dtype=torch.bool).scatter_(axis, largest, True)


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


def parse_links(text: str, *, first: int = 0, origin: str = "links") -> Gold:
    """One sentence's links.

    >>> gold = parse_links("1-1 2p3", first=1)
    >>> sorted(gold.sure), sorted(gold.possible)
    ([(0, 0)], [(0, 0), (1, 2)])

    Args:
        text: links between spaces, `source-target`, or `sourceptarget` for a possible one.
        first: the number of the first word in this text, 0 or 1. In memory words count from 0.
        origin: where the text is from, for errors.
    """
    _check_first(first)
    links: dict[str, set[tuple[int, int]]] = {"-": set(), "p": set()}
    for token in text.split():
        match = _LINK.fullmatch(token)
        if match is None:
            raise RegardError(f"{origin}: {token!r:.40}, expected a link such as 0-0 or 0p1")
        source, target = int(match[1]) - first, int(match[3]) - first
        if min(source, target) < 0:
            raise RegardError(f"{origin}: {token!r} has a word 0, but words count from {first}")
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
        parse_links(line, first=first, origin=f"{path}:{number}")
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


@dataclass(frozen=True)
class ErrorRate:
    """The alignment error rate (Och & Ney, 2003, section 5) and its counts.

    With A the links, S the sure and P the possible ones of the gold (S ⊆ P), over all sentences:

        precision = |A ∩ P| / |A|,  recall = |A ∩ S| / |S|,
        error rate = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
    """

    links: int  #: |A|
    sure: int  #: |S|
    in_sure: int  #: |A ∩ S|
    in_possible: int  #: |A ∩ P|
    sentences: int

    @property
    def precision(self) -> float:
        """The share of the links that are possible; 1 if there are none."""
        return self.in_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """The share of the sure links that were found; 1 if there are none."""
        return self.in_sure / self.sure if self.sure else 1.0

    @property
    def error(self) -> float:
        """The alignment error rate, from 0 to 1."""
        total = self.links + self.sure
        return 1 - (self.in_sure + self.in_possible) / total if total else 0.0

    def __str__(self) -> str:
        return (
            f"alignment error rate {100 * self.error:.2f} %, precision {100 * self.precision:.2f} "
            f"%, recall {100 * self.recall:.2f} % ({self.sentences} sentences, {self.links} links)"
        )


def error_rate(links: Sequence[Links], gold: Sequence[Gold]) -> ErrorRate:
    """The alignment error rate of links, over all sentences together.

    >>> gold = [Gold.of(sure={(0, 0)}, possible={(1, 1)})]
    >>> print(error_rate([frozenset({(0, 0), (1, 1), (2, 1)})], gold))
    alignment error rate 25.00 %, precision 66.67 %, recall 100.00 % (1 sentences, 3 links)

    Args:
        links: for each sentence, the links to score.
        gold: for each sentence, the gold links.
    """
    if len(links) != len(gold):
        raise RegardError(f"{len(links)} sentences have links, but {len(gold)} have gold links")
    return ErrorRate(
        links=sum(map(len, links)),
        sure=sum(len(sentence.sure) for sentence in gold),
        in_sure=sum(len(a & sentence.sure) for a, sentence in zip(links, gold)),
        in_possible=sum(len(a & sentence.possible) for a, sentence in zip(links, gold)),
        sentences=len(links),
    )
