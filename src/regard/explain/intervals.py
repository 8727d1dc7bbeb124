"""How sure a mean is: intervals by resampling (Efron, 1979), and differences against chance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError

RESAMPLES = 2000
_ALL = 12  # examples up to which every choice of signs is tried


class Interval(NamedTuple):
    """A mean over examples, and the ends of its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(
    values: Float[Tensor, " example"],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The mean of the values and the percentile interval of means of resampled values.

    Values that are NaN are left out; of none the mean is NaN.

    >>> bootstrap(torch.tensor([0.2, 0.4, 0.4, 0.6]))
    Interval(mean=0.4000..., low=0.2..., high=0.5...)

    Args:
        values: one for each example.
        confidence: how often such an interval holds the mean, from 0 to 1.
        resamples: how often the examples are drawn anew, with replacement.
        seed: of the draws.
    """
    if not 0.0 < confidence < 1.0:
        raise RegardError(f"confidence={confidence}, expected above 0 and below 1")
    values = values.detach().cpu().double()
    values = values[~values.isnan()]
    if not len(values):
        return Interval(torch.nan, torch.nan, torch.nan)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (resamples, len(values)), generator=generator)
    means = values[drawn].mean(1)
    tail = (1.0 - confidence) / 2
    low, high = means.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64)).tolist()
    return Interval(float(values.mean()), low, high)


def sign_flips(
    differences: Float[Tensor, " example"], *, resamples: int = RESAMPLES, seed: int = 0
) -> float:
    """How often chance alone gives a mean at least as large, if each sign were tossed for.

    Fisher's randomisation test, one-sided, of paired differences. Up to 12 examples all signs are
    tried; with n of them the answer is never below 2⁻ⁿ, so few examples prove nothing. Values that
    are NaN are left out.

    >>> sign_flips(torch.tensor([0.3, 0.1, 0.2]))  # one of eight
    0.125
    """
    values = differences.detach().cpu().double()
    values = values[~values.isnan()]
    count = len(values)
    if not count:
        return 1.0
    if count <= _ALL:
        bits = torch.arange(2**count)[:, None] >> torch.arange(count) & 1
        signs = bits.double() * 2 - 1
    else:
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(2, (resamples, count), generator=generator).double() * 2 - 1
        signs = torch.cat([torch.ones(1, count).double(), signs])
    slack = 1e-12 * float(values.abs().sum())
    return float((signs @ values >= values.sum() - slack).double().mean())
