"""The options of all scores, with one set of defaults."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from regard.errors import RegardError

Tokenizer = Literal["13a", "intl", "char", "zh", "none"]
TOKENIZERS: tuple[Tokenizer, ...] = get_args(Tokenizer)


@dataclass(frozen=True)
class EvaluationOptions:
    """How translations are scored.

    | field       | meaning                                                                     |
    |-------------|-----------------------------------------------------------------------------|
    | `lower`     | ignore case                                                                 |
    | `tokenizer` | sacrebleu's tokeniser for BLEU: "13a" (the standard), "intl", "char", "zh", |
    |             | or "none" for tokenised text; chrF counts characters and needs none         |
    | `edges`     | lengths in words at which a new bucket begins, rising; none for no buckets  |
    | `resamples` | number of bootstrap resamples                                               |
    | `examples`  | how many sentences to return on which two systems differ most               |
    """

    lower: bool = False
    tokenizer: Tokenizer = "13a"
    edges: tuple[int, ...] = (10, 20, 30, 40, 50)
    resamples: int = 1000
    examples: int = 5

    def __post_init__(self) -> None:
        if self.tokenizer not in TOKENIZERS:
            raise RegardError(
                f"tokenizer={self.tokenizer!r}, expected one of {', '.join(TOKENIZERS)}"
            )
        if not all(low < high for low, high in pairwise((0, *self.edges))):
            raise RegardError(f"edges={self.edges}, expected rising numbers above 0")
        if self.resamples < 1:
            raise RegardError(f"resamples={self.resamples}, expected 1 or more")
        if self.examples < 0:
            raise RegardError(f"examples={self.examples}, expected 0 or more")
