"""Answers about a corpus, and how sure they are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardError


class Estimate(NamedTuple):
    """A mean over a corpus for each head, and how sure it is; NaN of nothing.

    Examples are taken for independent draws, their rows are not: ten long texts with 10⁴ rows do
    not give an error as small as 10⁴ texts do.
    """

    mean: Float[Tensor, " head *more"]
    error: Float[Tensor, " head *more"]  #: standard error of the mean; NaN of a single example
    number: Float[Tensor, " head *more"]  #: what it is a mean over: rows, or a sum of weights
    examples: Int[Tensor, " head *more"]  #: how many examples had any
    variance: Float[Tensor, " head *more"] | None = None  #: of single rows, where it is known

    def interval(self, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
        """Both ends of the interval that holds the true mean with this probability, if there are
        enough examples for a normal distribution (thirty, say).

        >>> estimate = Estimate(*torch.tensor([[0.5], [0.1], [40.0]]), torch.tensor([40]))
        >>> [round(float(end), 3) for end in estimate.interval()]
        [0.304, 0.696]
        """
        if not 0.0 < confidence < 1.0:
            raise RegardError(f"confidence={confidence}, expected above 0 and below 1")
        reach = torch.special.ndtri(torch.tensor(0.5 + confidence / 2, dtype=torch.float64))
        return self.mean - reach * self.error, self.mean + reach * self.error


class Binned(NamedTuple):
    """How values are spread: counts in bins of equal width."""

    counts: Int[Tensor, "head bin"]
    least: Float[Tensor, " head"]
    largest: Float[Tensor, " head"]
    low: float  #: lower end of the first bin
    width: float  #: of a bin; quantiles are off by no more

    @property
    def number(self) -> Int[Tensor, " head"]:
        """How many values there are."""
        return self.counts.sum(1)

    def quantiles(self, *at: float) -> Float[Tensor, "head quantile"]:
        """Values that such shares of all values are below; off by no more than `width`."""
        wrong = [share for share in at if not 0.0 <= share <= 1.0]
        if wrong or not at:
            raise RegardError(f"quantiles: {wrong or 'nothing'}, expected numbers from 0 to 1")
        number = self.number
        rank = torch.tensor(at, dtype=torch.float64) * (number - 1)[:, None]  # from 0
        index = torch.searchsorted(self.counts.cumsum(1).double(), rank, right=True)
        middle = self.low + (index + 0.5) * self.width
        values = middle.clamp(self.least[:, None], self.largest[:, None])
        return torch.where(number[:, None] > 0, values, torch.nan)


class Example(NamedTuple):
    """An example of the corpus, as it is shown."""

    number: int  #: in the corpus, from 0
    text: str | None
    tokens: list[str] | list[int] | None


class Strong(NamedTuple):
    """An example in which a head is strong, and the pair of positions in which it is."""

    score: float
    example: Example
    query: int
    key: int

    def __str__(self) -> str:
        tokens = self.example.tokens
        pair = f"{self.query} → {self.key}"
        if tokens is not None:
            pair = f"{tokens[self.query]} → {tokens[self.key]}"
        text = self.example.text or f"example {self.example.number}"
        return f"{self.score:.2f} {pair} | {text:.80}"
