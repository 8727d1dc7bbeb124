"""Two systems side by side: is the second really another, or is it the choice of sentences?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.translate.evaluation.scores import Tokenizer, check_parallel, metrics

RESAMPLES = 1000
SEED = 12345  # sacrebleu's own, so that its intervals are these


@dataclass(frozen=True)
class Compared:
    """One system under one measure.

    | field      | meaning                                              |
    |------------|------------------------------------------------------|
    | `value`    | its score on all sentences                           |
    | `mean`     | the mean over resampled sets of sentences            |
    | `interval` | half the width of the 95 % interval around that mean |
    """

    value: float
    mean: float
    interval: float


@dataclass(frozen=True)
class Comparison:
    """Two systems under one measure, with its signature (seed and resamples are in it).

    `two_sided_p` says how probable a difference of this size, to either side, would be by the
    choice of sentences alone, were the systems equally good. It is never less than
    1 / (`resamples` + 1): where it is that, all it says is "at most". Nor is it less than
    2^(1 - n) for n sentences: so often they all turn out better for one system by chance.
    """

    name: str
    first: Compared
    second: Compared
    two_sided_p: float
    signature: str
    resamples: int

    @property
    def difference(self) -> float:
        """By how much the second is better."""
        return self.second.value - self.first.value

    @property
    def at_floor(self) -> bool:
        """Whether p is the least that so many draws can say."""
        return self.two_sided_p <= 1 / (self.resamples + 1)


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    lower: bool = False,
    tokenizer: Tokenizer = "13a",
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """BLEU and chrF of two systems, with paired bootstrap resampling (Koehn, 2004).

    The same sentences are drawn for both systems, with replacement, B times. With d the difference
    on all sentences, d_b that on draw b and d̄ the mean of those,

        p = (1 + #{b : |d_b - d̄| ≥ |d|}) / (B + 1),

    or 2^(1 - n) for n sentences, if that is more; it is two-sided. The draws, means and intervals
    are those of sacrebleu's paired bootstrap. Its p is another: it takes |d_b| before the mean, and
    counts only those above it, so that equally good systems are told apart too often.

    Args:
        first: translations of the first system, the one that the other is held against.
        second: translations of the second.
        references: what each should have been.
        lower: as for `score`.
        tokenizer: as for `score`.
        resamples: how many sets of sentences are drawn.
    """
    check_parallel(first=first, second=second, references=references)
    if resamples < 1:
        raise RegardError(f"resamples={resamples}, expected 1 or more")
    counters = metrics(lower, tokenizer)
    times = _times_drawn(len(references), resamples)
    made = []
    for metric in counters.values():
        one, other = (_Resampled.of(metric, texts, references, times) for texts in (first, second))
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("bs", resamples)
        difference = other.value - one.value
        chance = _two_sided(other.drawn - one.drawn, difference, len(references))
        compared = one.compared(), other.compared()
        made.append(Comparison(one.name, *compared, chance, str(signature), resamples))
    return made


def _times_drawn(sentences: int, resamples: int) -> Float[Tensor, "draw sentence"]:
    """How often each sentence is in each draw."""
    from numpy.random import default_rng  # sacrebleu draws with it, and brings it

    draws = torch.from_numpy(default_rng(SEED).choice(sentences, size=(resamples, sentences)))
    times = torch.zeros(resamples, sentences, dtype=torch.float64)
    return times.scatter_add_(1, draws, torch.ones_like(times))


def _two_sided(drawn: Float[Tensor, " draw"], difference: float, sentences: int) -> float:
    """The share of drawn differences as far from their mean as the difference is from 0.

    One sentence is drawn every time, so its draws never differ: sign flips of n sentences cannot
    say less than 2^(1 - n), and neither does this.
    """
    as_far = (drawn - drawn.mean()).abs() >= abs(difference)
    return max((int(as_far.sum()) + 1) / (len(drawn) + 1), 2.0 ** (1 - sentences))


@dataclass(frozen=True, eq=False)
class _Resampled:
    """A system under one measure: its score on all sentences, and on each draw of them."""

    name: str
    value: float
    drawn: Float[Tensor, " draw"]

    @classmethod
    def of(
        cls,
        metric: Any,
        said: Sequence[str],
        references: Sequence[str],
        times: Float[Tensor, "draw sentence"],
    ) -> _Resampled:
        """Count once a sentence; the counts of a draw are their sum."""
        found = metric._extract_corpus_statistics(list(said), [list(references)])
        counts = torch.tensor(found, dtype=torch.float64)  # (sentence, count)
        whole = metric._compute_score_from_stats(counts.sum(0).tolist())
        drawn = [metric._compute_score_from_stats(draw).score for draw in (times @ counts).tolist()]
        return cls(whole.name, float(whole.score), torch.tensor(drawn, dtype=torch.float64))

    def compared(self) -> Compared:
        """With the interval as sacrebleu takes it: a fortieth of the draws left out at each end."""
        ordered = self.drawn.sort().values
        left_out = len(ordered) // 40
        width = ordered[len(ordered) - left_out - 1] - ordered[left_out]
        return Compared(self.value, float(ordered.mean()), float(width) / 2)


@dataclass(frozen=True)
class Differing:
    """A sentence that two systems translate differently well; `number` is its place, from 0.

    `first` and `second` are chrF of the sentence: it has a value for single sentences, where BLEU
    is mostly 0.
    """

    number: int
    first: float
    second: float


def differing(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    most: int = 5,
    lower: bool = False,
) -> list[Differing]:
    """The sentences whose chrF differs most between two systems, the largest difference first.

    >>> differing(["a cat", "yes"], ["a cat", "no"], ["a cat", "yes"])
    [Differing(number=1, first=100.0, second=0.0)]

    Args:
        first: translations of the first system.
        second: translations of the second.
        references: what each should have been.
        most: how many of them.
        lower: as for `score`.
    """
    check_parallel(first=first, second=second, references=references)
    counter = metrics(lower, "13a")["chrF"]
    found = []
    for number, (one, other, right) in enumerate(zip(first, second, references)):
        if one != other:
            values = (counter.sentence_score(text, [right]).score for text in (one, other))
            found.append(Differing(number, *map(float, values)))
    found = [one for one in found if one.first != one.second]
    found.sort(key=lambda one: (-abs(one.first - one.second), one.number))
    return found[:most]
