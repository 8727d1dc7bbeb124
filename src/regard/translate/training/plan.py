"""Which sentences each step of an epoch sees: a function of the seed and the epoch, no state."""

from __future__ import annotations

from dataclasses import dataclass

from regard.translate.config import TrainingConfig
from regard.translate.data import Examples, batches


@dataclass(frozen=True)
class Step:
    """One change of the parameters.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `batches` | numbers of the sentences that this process sees, batch by batch             |
    | `tokens`  | target tokens that all processes see together                               |

    Every process knows `tokens` without asking the others, so each can divide its loss by it: the
    gradient is that of one process with all the sentences.
    """

    batches: list[list[int]]
    tokens: int


def plan_epoch(
    examples: Examples, config: TrainingConfig, epoch: int, rank: int = 0, ranks: int = 1
) -> list[Step]:
    """The steps of an epoch, as one of `ranks` processes makes them."""
    by_rank = [
        batches(
            examples,
            tokens=None if config.batch_sentences else config.batch_tokens,
            sentences=config.batch_sentences or None,
            seed=config.seed,
            epoch=epoch,
            rank=other,
            ranks=ranks,
        )
        for other in range(ranks)
    ]
    steps = []
    for start in range(0, len(by_rank[0]), config.accumulate):
        end = start + config.accumulate
        seen = [number for found in by_rank for batch in found[start:end] for number in batch]
        tokens = sum(len(examples.target[number]) for number in seen)
        steps.append(Step(by_rank[rank][start:end], tokens))
    return steps
