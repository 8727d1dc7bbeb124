"""The result of a search."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One translation of one sentence.

    | field             | meaning                                                              |
    |-------------------|----------------------------------------------------------------------|
    | `tokens`          | what was said, without `BEGIN`; `END` is the last where it was said  |
    | `score`           | what hypotheses are ranked by: see `regard.translate.beam_search`   |
    | `log_probability` | log P(tokens), natural logarithm, nothing added or divided           |
    | `weights`         | by site, (head, target, source): a row for each of `tokens`          |
    """

    tokens: list[int]
    score: float
    log_probability: float
    weights: dict[str, Float[Tensor, "head target source"]] = field(default_factory=dict)
