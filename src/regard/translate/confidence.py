"""How sure a translator is of a translation, and whether a text is like those it learned from.

Both are measured on the validation pairs of a training and stored in its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from regard.errors import RegardError

_FEWEST = 3  # tokens of a text that can be unlike others
_UNSURE = 0.3  # confidence below which a translation is remarked on
_USUAL = 0.995  # share of the validation texts that are not remarked on
_LEAST_EXCESS = 3.0  # standard errors that are usual anyway
_UNITS = 10  # of a cost, in a bit


@dataclass(frozen=True)
class Confidence:
    """The chrF that a translation may be expected to have, from 0 to 1.

    σ(slope · x + offset) of the mean log-probability x of its tokens, fitted to the chrF of
    translations against their references by least squares.

    >>> sure = Confidence.fitted([-0.1, -0.2, -2.0, -3.0], [0.9, 0.8, 0.2, 0.1])
    >>> sure.of(-0.1) > 0.7 > 0.3 > sure.of(-2.5)
    True
    """

    slope: float
    offset: float

    @classmethod
    def fitted(cls, means: Sequence[float], qualities: Sequence[float]) -> Confidence:
        """From mean log-probabilities and chrF (0 to 1) of some translations."""
        if not means or len(means) != len(qualities):
            raise RegardError(
                f"{len(means)} means and {len(qualities)} qualities, expected as many"
            )
        x = torch.tensor(means, dtype=torch.float64)
        y = torch.tensor(qualities, dtype=torch.float64)
        values = torch.tensor([1.0, 1.0], dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.LBFGS([values], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> float:
            optimiser.zero_grad()
            loss = ((values[0] * x + values[1]).sigmoid() - y).square().mean()
            loss.backward()
            return float(loss.detach())

        with torch.enable_grad():
            optimiser.step(closure)
        slope, offset = values.tolist()
        return cls(slope, offset)

    def of(self, mean: float) -> float:
        """The confidence in a translation whose tokens have this mean log-probability."""
        return 1 / (1 + math.exp(-max(-50.0, min(50.0, self.slope * mean + self.offset))))


@dataclass(frozen=True)
class Familiarity:
    """Which texts are unlike those that a model learned from: in another language, for instance.

    A token costs −log₂ of its frequency among the sources; a text whose mean cost is further above
    that of the validation sources than that of 99.5 % of them, in standard errors, is unlike them.

    | field       | meaning                                                                   |
    |-------------|---------------------------------------------------------------------------|
    | `costs`     | of each token of the vocabulary, in tenths of a bit                       |
    | `mean`      | of a token of the validation sources                                      |
    | `deviation` | standard deviation of that                                                |
    | `limit`     | standard errors above the mean that are usual                             |
    """

    costs: Sequence[int]
    mean: float
    deviation: float
    limit: float

    @classmethod
    def measured(
        cls, train: Iterable[Sequence[int]], valid: Sequence[Sequence[int]], size: int
    ) -> Familiarity:
        """From the sources of both parts, as tokens of a vocabulary of this size."""
        tokens = torch.tensor([token for source in train for token in source])
        counts = torch.bincount(tokens, minlength=size).double() + 1
        costs = (-(counts / counts.sum()).log2() * _UNITS).round().int().tolist()
        every = torch.tensor([costs[token] for source in valid for token in source]).double()
        deviation = max(float(every.std(correction=0)), _UNITS)
        known = cls(costs, float(every.mean()), deviation, 0.0)
        excesses = sorted(known.excess(source) for source in valid)
        limit = excesses[min(len(excesses) - 1, int(_USUAL * len(excesses)))]
        return cls(costs, known.mean, deviation, max(limit, _LEAST_EXCESS))

    def excess(self, tokens: Sequence[int]) -> float:
        """How many standard errors the mean cost of a text lies above that of others."""
        if len(tokens) < _FEWEST:
            return 0.0
        mean = sum(self.costs[token] for token in tokens) / len(tokens)
        return (mean - self.mean) / self.deviation * math.sqrt(len(tokens))

    def unlike(self, tokens: Sequence[int]) -> bool:
        """Whether a text, with its end, is unlike those that the model learned from."""
        return self.excess(tokens) > self.limit


def confidence_of(extra: Mapping[str, Any]) -> Confidence | None:
    """That of a checkpoint's `extra`, if it has one."""
    return Confidence(**extra["confidence"]) if "confidence" in extra else None


def familiarity_of(extra: Mapping[str, Any]) -> Familiarity | None:
    """That of a checkpoint's `extra`, if it has one."""
    return Familiarity(**extra["familiarity"]) if "familiarity" in extra else None


def extra_entry(value: Confidence | Familiarity) -> dict[str, Any]:
    """What `extra` holds of it."""
    return {type(value).__name__.lower(): asdict(value)}


def unsure(confidence: float | None) -> bool:
    """Whether a translation is remarked on."""
    return confidence is not None and confidence < _UNSURE
