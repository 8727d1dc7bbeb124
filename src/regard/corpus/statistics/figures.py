"""The figures of `trace.report()` over a corpus, the types of heads, and how often each holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.aggregate.statistics.head_statistics import FIGURES, figures_of
from regard.aggregate.statistics.head_sums import RATIOS, RowSums
from regard.aggregate.statistics.head_types import NAMES, HeadTypes, head_types
from regard.corpus.batch import Batch
from regard.corpus.estimates import Estimate
from regard.corpus.parts import Count, Largest, Ratio, Total
from regard.corpus.statistic import Attention, Parts, Statistic
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer

#: What is added up as the ratio of two sums, over figures that are one by themselves.
_SUMS = {**RATIOS, "evenness": "even", "squared_distance": "mass"}
_OCTAVES = 16  # of distances beyond those that are told apart
_STEPS = 4  # places for each of them


@dataclass(frozen=True, eq=False)
class Profile:
    """Attention by offset j − i. A place stands for one offset, or for several far away."""

    offset: Float[Tensor, " place"]  #: the middle of each place; negative is behind the query
    width: Float[Tensor, " place"]  #: how many offsets it stands for
    share: Float[Tensor, "head place"]  #: of all attention
    even: Float[Tensor, "head place"]  #: the same of even attention to all keys in sight


@dataclass(frozen=True, eq=False)
class HeadFigures:
    """Figures of the heads of one attention over a corpus."""

    figures: Mapping[str, Estimate]  #: by name, as in `trace.report()`
    types: HeadTypes  #: of the figures over the whole corpus
    type_counts: Int[Tensor, "head type"]  #: in how many examples a head is of each type
    profile: Profile

    @property
    def names(self) -> list[str]:
        """The type of each head in one word."""
        return [NAMES[number] for number in self.types.numbers.tolist()]

    @property
    def type_shares(self) -> list[dict[str, float]]:
        """For each head, the share of examples in which it is of each type, largest first."""
        shares = (self.type_counts / self.type_counts.sum(1, keepdim=True)).tolist()
        return [
            dict(sorted(((n, s) for n, s in zip(NAMES, row) if s > 0), key=lambda pair: -pair[1]))
            for row in shares
        ]


class Figures(Statistic):
    """Every figure of `trace.report()`: entropy, distance, weight on the position itself, the one
    before and after, the first one and special tokens, sinks, induction and duplicate tokens; the
    profile over distances; and types of heads.

    Means are over all rows of the corpus. `positional` and `spread` are no means and have no error.

    Args:
        window: how many positions to each side are local.
        reach: distances up to which each is a place of the profile; further away there are four
            places for each doubling.
    """

    def __init__(self, window: int = 4, reach: int = 64) -> None:
        if window < 1 or reach < 1:
            raise RegardError(f"Figures: window={window}, reach={reach}, expected at least 1")
        self.window, self.reach = window, reach

    def asks(self, batch: Batch) -> Mapping[str, Reducer]:
        return batch.questions.reducers

    def start(self) -> Parts:
        profiles = {f"{part}{name}": Total() for part in ("", "rest_") for name in _PROFILES}
        return {"sums": Ratio(), "rest": Ratio(), "types": Count(), "longest": Largest()} | profiles

    def update(self, parts: Parts, attention: Attention) -> None:
        rows = attention.row_sums
        sums = rows.sums(self.window) | {"aside": rows.aside()}
        rest = RowSums.of_kept(rows, ~rows.sinks()).sums(self.window)
        for name, prefix, values in (("sums", "", sums), ("rest", "rest_", rest)):
            parts[name].add(*_stacked(values))
            for profile in _PROFILES:
                parts[prefix + profile].add(self._placed(values[profile].sum(0)))
        repeats = sums.get(RATIOS["induction"], 0)
        types = head_types(figures_of(sums), repeats, figures_of(rest))
        seen = sums["examples"] > 0  # (batch, head)
        parts["types"].add(
            torch.stack([((types.numbers == n) & seen).sum(0) for n in range(len(NAMES))], 1)
        )
        parts["longest"].add(_extent(attention.batch.positions.keys).amax(0))

    def result(self, parts: Parts) -> HeadFigures:
        offset, width = self._places(int(parts["longest"].result()))
        sums, rest = (
            _unstacked(parts[name])
            | {profile: parts[prefix + profile].result() for profile in _PROFILES}
            for name, prefix in (("sums", ""), ("rest", "rest_"))
        )
        figures = figures_of(sums, width)
        repeats = sums.get(RATIOS["induction"], 0)
        types = head_types(figures, repeats, figures_of(rest, width))
        ratios = parts["sums"].result()
        estimates = {}
        for name in FIGURES:
            if name in _SUMS:
                column = list(_SUMS).index(name)
                estimates[name] = Estimate(*(value[:, column] for value in ratios[:4]))
            else:
                nothing = torch.full_like(figures[name], math.nan)
                estimates[name] = Estimate(
                    figures[name], nothing, ratios.number[:, 0], ratios.examples[:, 0]
                )
        some = width > 0
        shares = (
            sums[profile][:, some] / sums[profile].sum(1, keepdim=True) for profile in _PROFILES
        )
        profile = Profile(offset[some], width[some], *shares)
        return HeadFigures(estimates, types, parts["types"].result(), profile)

    # -- places of offsets

    @property
    def _beyond(self) -> int:
        """How many places there are to each side."""
        return self.reach + _OCTAVES * _STEPS

    def _place(self, offset: Float[Tensor, " offset"]) -> Int[Tensor, " offset"]:
        """The place of each offset: exact within reach, then some for each octave."""
        distance = offset.abs()
        octaves = (distance / (self.reach + 1)).clamp_min(1.0).log2() + 1e-12
        far = self.reach + 1 + (octaves * _STEPS).floor()
        return (offset.sign() * torch.where(distance <= self.reach, distance, far)).long()

    def _placed(self, by_offset: Float[Tensor, "head offset"]) -> Float[Tensor, "head place"]:
        """Sums by offset, from 1 − keys to queries − 1, as sums by place."""
        heads, offsets = by_offset.shape
        keys = (offsets + 1) // 2
        index = self._place(torch.arange(1 - keys, keys).double()) + self._beyond
        placed = torch.zeros(heads, 2 * self._beyond + 1, dtype=torch.float64)
        return placed.index_add_(1, index, by_offset)

    def _places(self, longest: int) -> tuple[Float[Tensor, " place"], Float[Tensor, " place"]]:
        """The middle offset of each place and how many offsets it stands for, in texts of up to so
        many positions; 0 beyond them."""
        offset = torch.arange(1 - longest, longest).double()
        index = self._place(offset) + self._beyond
        size = 2 * self._beyond + 1
        width = torch.zeros(size, dtype=torch.float64).index_add_(0, index, torch.ones_like(offset))
        middle = torch.zeros(size, dtype=torch.float64).index_add_(0, index, offset)
        return middle / width.clamp_min(1.0), width


_PROFILES = ("offsets", "even_offsets")


_SOMETIMES = ("special", "aside", "induction", "duplicate")  # not known of every text


def _stacked(sums: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The two sums of each ratio, (batch, head, figure); 0 of what is not known."""
    nothing = torch.zeros_like(sums["rows"])
    by_name = {**sums, "evenness": sums["entropy"]}
    pairs = [
        (by_name[name], by_name[number]) if name in by_name else (nothing, nothing)
        for name, number in _SUMS.items()
    ]
    totals, numbers = zip(*pairs)
    return torch.stack(totals, 2), torch.stack(numbers, 2)


def _unstacked(part: Ratio) -> dict[str, Float[Tensor, " head"]]:
    """The same sums, over the corpus, by name."""
    sums = {}
    for column, (name, number) in enumerate(_SUMS.items()):
        if name not in _SOMETIMES or bool(part.arrays["examples"][:, column].any()):
            sums[name] = part.arrays["total"][:, column]
            sums[number] = part.arrays["number"][:, column]
    return sums


def _extent(real: Bool[Tensor, "batch position"]) -> Int[Tensor, " batch"]:
    """From the first real position to the last one."""
    places = torch.arange(1, real.shape[1] + 1) * real
    return places.amax(1) - real.int().argmax(1)
