"""Two systems side by side: is the second really another, or is it the choice of sentences?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.errors import RegardError
from regard.translate.evaluation.scores import Tokenizer, check_parallel, metrics

RESAMPLES = 1000


@dataclass(frozen=True)
class Compared:
    """One system under one measure.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `value`    | its score on all sentences                                                 |
    | `mean`     | the mean over resampled sets of sentences                                  |
    | `interval` | half the width of the 95 % interval around that mean                       |
    | `p_value`  | how probable so large a difference from the first system is by chance;     |
    |            | None for the first itself                                                  |
    """

    value: float
    mean: float
    interval: float
    p_value: float | None


@dataclass(frozen=True)
class Comparison:
    """Two systems under one measure, with its signature (seed and resamples are in it)."""

    name: str
    first: Compared
    second: Compared
    signature: str

    @property
    def difference(self) -> float:
        """By how much the second is better."""
        return self.second.value - self.first.value


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    lower: bool = False,
    tokenizer: Tokenizer = "13a",
    resamples: int = RESAMPLES,
) -> list[Comparison]:
    """BLEU and chrF of two systems, with paired bootstrap resampling (Koehn, 2004), by sacrebleu.

    The same sentences are drawn for both systems, with replacement. `p_value` is sacrebleu's: how
    often the size of a drawn difference lies above the mean of those by more than the difference on
    all sentences. It looks at one side, so a two-sided test says about twice as much. Two systems
    with equal scores have p = 1 (sacrebleu says 1 / (resamples + 1) there).

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
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        [("first", list(first)), ("second", list(second))],
        counters,
        [list(references)],
        test_type="bs",
        n_samples=resamples,
    )
    signatures, results = test()
    made = []
    for name, signature in signatures.items():
        one, other = (_compared(found) for found in results[name])
        if one.value == other.value:
            other = replace(other, p_value=1.0)
        made.append(Comparison(name, one, other, str(signature)))
    return made


def _compared(found: Any) -> Compared:
    """One of sacrebleu's results."""
    chance = None if found.p_value is None else float(found.p_value)
    return Compared(float(found.score), float(found.mean), float(found.ci), chance)


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
