"""How sharp rows are: their entropy and the number of keys they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from regard.corpus.batch import Batch
from regard.corpus.estimates import Binned, Estimate
from regard.corpus.parts import Bins, Mean
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer

_LARGEST = 16.0  # nats, the entropy of nine million keys


class HeadSharpness(NamedTuple):
    """How sharp the rows of each head are."""

    entropy: Estimate  #: in nats, of a row divided by its sum
    effective: Estimate  #: keys that a row rests on, 1 / Σⱼ Aᵢⱼ²
    entropies: Binned  #: how entropy is spread over rows
    log_effective: Binned  #: how the logarithm of the number of keys is spread over rows


class Sharpness(Statistic):
    """Entropy of rows and the effective number of keys: mean, variance, quantiles.

    Args:
        bins: of equal width up to 16 nats. A quantile is off by no more than one bin.
    """

    def __init__(self, bins: int = 512) -> None:
        if bins < 1:
            raise RegardError(f"Sharpness: bins={bins}, expected at least 1")
        self.bins = bins

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        return {name: batch.questions.reducers[name] for name in ("entropy", "squares")}

    def start(self) -> Parts:
        return {
            "entropy": Mean(),
            "effective": Mean(),
            "entropies": Bins(0.0, _LARGEST, self.bins),
            "log_effective": Bins(0.0, _LARGEST, self.bins),
        }

    def update(self, parts: Parts, attention: Attention) -> None:
        sums, rows = attention.row_sums, attention.rows
        parts["entropy"].add(sums.entropy, rows)
        parts["entropies"].add(sums.entropy, rows)
        parts["effective"].add(sums.effective, rows)
        parts["log_effective"].add(sums.effective.log(), rows)

    def result(self, parts: Parts) -> HeadSharpness:
        return HeadSharpness(**super().result(parts))
