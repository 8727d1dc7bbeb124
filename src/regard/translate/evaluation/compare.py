"""Two systems compared: is the difference significant, and where is it largest?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.translate.evaluation.scores import EvaluationOptions, check_parallel, metrics

SEED = 12345  # sacrebleu's own, so that its intervals are these


@dataclass(frozen=True)
class SystemScore:
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
    first: SystemScore
    second: SystemScore
    two_sided_p: float
    signature: str
    resamples: int

    @property
    def difference(self) -> float:
        """By how much the second is better."""
        return self.second.value - self.first.value

    @property
    def at_floor(self) -> bool:
        """Whether p is the minimum for this many resamples."""
        return self.two_sided_p <= 1 / (self.resamples + 1)


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
) -> list[Comparison]:
    """BLEU and chrF of two systems, with paired bootstrap resampling (Koehn, 2004).

    The same sentences are drawn for both systems, with replacement, B times. With d the difference
    on all sentences, d_b that on draw b and d̄ the mean of those,

        p = (1 + #{b : |d_b - d̄| ≥ |d|}) / (B + 1),

    or 2^(1 - n) for n sentences, if that is more; it is two-sided. The draws, means and intervals
    are those of sacrebleu's paired bootstrap. Its p is another: it takes |d_b| before the mean, and
    counts only those above it, so that equally good systems are told apart too often.

    Args:
        first: translations of the first system, the baseline.
        second: translations of the second.
        references: a reference translation for each.
        options: case, tokeniser and `resamples`; the defaults of `EvaluationOptions` when None.
    """
    options = EvaluationOptions() if options is None else options
    check_parallel(first=first, second=second, references=references)
    times = _times_drawn(len(references), options.resamples)
    comparisons = []
    for metric in metrics(options).values():
        a, b = (_Resamples.of(metric, texts, references, times) for texts in (first, second))
        signature = metric.get_signature()
        signature.update("seed", str(SEED))
        signature.update("bs", options.resamples)
        p = _two_sided(b.drawn - a.drawn, b.value - a.value, len(references))
        scores = a.score(), b.score()
        comparisons.append(Comparison(a.name, *scores, p, str(signature), options.resamples))
    return comparisons


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
class _Resamples:
    """A system under one measure: its score on all sentences, and on each draw of them."""

    name: str
    value: float
    drawn: Float[Tensor, " draw"]

    @classmethod
    def of(
        cls,
        metric: Any,
        hypotheses: Sequence[str],
        references: Sequence[str],
        times: Float[Tensor, "draw sentence"],
    ) -> _Resamples:
        """Count n-grams once per sentence; the counts of a draw are their sum."""
        statistics = metric._extract_corpus_statistics(list(hypotheses), [list(references)])
        counts = torch.tensor(statistics, dtype=torch.float64)  # (sentence, count)
        whole = metric._compute_score_from_stats(counts.sum(0).tolist())
        drawn = [metric._compute_score_from_stats(draw).score for draw in (times @ counts).tolist()]
        return cls(whole.name, float(whole.score), torch.tensor(drawn, dtype=torch.float64))

    def score(self) -> SystemScore:
        """With the interval as sacrebleu takes it: a fortieth of the draws left out at each end."""
        ordered = self.drawn.sort().values
        left_out = len(ordered) // 40
        width = ordered[len(ordered) - left_out - 1] - ordered[left_out]
        return SystemScore(self.value, float(ordered.mean()), float(width) / 2)


@dataclass(frozen=True)
class SentenceDifference:
    """A sentence that two systems translate differently well; `number` counts from 0.

    `first` and `second` are chrF of the sentence, as BLEU of single sentences is mostly 0.
    """

    number: int
    first: float
    second: float


def differing(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    options: EvaluationOptions | None = None,
) -> list[SentenceDifference]:
    """The sentences whose chrF differs most between two systems, the largest difference first.

    >>> differing(["a cat", "yes"], ["a cat", "no"], ["a cat", "yes"])
    [SentenceDifference(number=1, first=100.0, second=0.0)]

    Args:
        first: translations of the first system.
        second: translations of the second.
        references: a reference translation for each.
        options: case, and how many `examples`; the defaults of `EvaluationOptions` when None.
    """
    options = EvaluationOptions() if options is None else options
    check_parallel(first=first, second=second, references=references)
    metric = metrics(options)["chrF"]
    differences = []
    for number, (a, b, reference) in enumerate(zip(first, second, references)):
        if a != b:
            values = (metric.sentence_score(text, [reference]).score for text in (a, b))
            differences.append(SentenceDifference(number, *map(float, values)))
    differences = [each for each in differences if each.first != each.second]
    differences.sort(key=lambda each: (-abs(each.first - each.second), each.number))
    return differences[: options.examples]
