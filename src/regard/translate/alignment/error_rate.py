"""Alignment error rate against gold links (Och & Ney, 2003, section 5).

With A the links, S the sure and P the possible ones of the gold (S ⊆ P), over all sentences:

    precision = |A ∩ P| / |A|,  recall = |A ∩ S| / |S|,
    error rate = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import RegardError
from regard.translate.alignment.links import Links
from regard.translate.alignment.pharaoh import Gold


@dataclass(frozen=True)
class ErrorRate:
    """The alignment error rate and the counts it is made of."""

    links: int  #: |A|
    sure: int  #: |S|
    in_sure: int  #: |A ∩ S|
    in_possible: int  #: |A ∩ P|
    sentences: int

    @property
    def precision(self) -> float:
        """The share of the links that are possible; 1 where there are none."""
        return self.in_possible / self.links if self.links else 1.0

    @property
    def recall(self) -> float:
        """The share of the sure links that were found; 1 where there are none."""
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
