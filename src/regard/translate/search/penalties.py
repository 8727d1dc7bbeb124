"""How hypotheses of different lengths are compared.

Wu et al. 2016, "Google's neural machine translation system", equation 14:

    score = log P(Y | X) / lp(Y) + cp(X, Y)
    lp(Y) = (5 + |Y|)^α / (5 + 1)^α
    cp(X, Y) = β Σᵢ log min(Σⱼ pᵢⱼ, 1)

where pᵢⱼ is the weight of source token i at target token j, here the mean over the model's sites
and their heads, and |Y| counts `END`. A token that was not looked at counts as 1e-6, not as 0.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

UNSEEN = 1e-6  #: what a source token counts for that was looked at less: windows leave some at 0


def per_length(
    log_probability: Float[Tensor, "*hypothesis"], length: int | Tensor, alpha: float
) -> Float[Tensor, "*hypothesis"]:
    """log P / lp of hypotheses of so many tokens."""
    return log_probability / ((5 + length) / 6) ** alpha


def coverage_term(
    seen: Float[Tensor, "hypothesis source"], mask: Bool[Tensor, "hypothesis source"], beta: float
) -> Float[Tensor, " hypothesis"]:
    """cp(X, Y): at most 0, and 0 where every source token was looked at with a weight of 1."""
    covered = seen.clamp(UNSEEN, 1.0).log()
    return beta * covered.masked_fill(~mask, 0.0).sum(1)
