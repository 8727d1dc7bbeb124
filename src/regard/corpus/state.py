"""What is known of a corpus so far: the parts of every attention, and what was counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from regard.corpus.corpus import Failure
from regard.corpus.statistic import Parts, Statistic
from regard.errors import RegardError
from regard.record.tensor_file import under


@dataclass
class State:
    """Adds up batches, and other states; in whatever order, the sums are the same."""

    statistics: Mapping[str, Statistic]
    sites: dict[str, dict[str, Parts]] = field(default_factory=dict)  #: by site and statistic
    examples: int = 0
    tokens: int = 0
    cut: int = 0  #: how many examples were longer than `max_length`
    failures: list[Failure] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  #: attentions, and why
    weights: str = ""  #: digest of those of a model that a function loaded

    def parts(self, site: str) -> dict[str, Parts]:
        """The parts of an attention, by statistic."""
        if site not in self.sites:
            self.sites[site] = {name: each.start() for name, each in self.statistics.items()}
        return self.sites[site]

    def merge(self, other: State) -> None:
        """Add what another state saw."""
        for site, by_statistic in other.sites.items():
            mine = self.parts(site)
            for name, parts in by_statistic.items():
                for part, theirs in parts.items():
                    try:
                        mine[name][part].merge(theirs)
                    except RegardError as error:
                        raise RegardError(f"{site}: {name}: {error}") from None
        self.examples += other.examples
        self.tokens += other.tokens
        self.cut += other.cut
        self.failures += other.failures
        self.left_out |= other.left_out
        self.weights = other.weights or self.weights

    # -- as it is saved

    def tensors(self) -> dict[str, Tensor]:
        """All arrays, by the number of the site, statistic, part and array."""
        return {
            f"{number}/{name}/{part}/{array}": tensor
            for number, by_statistic in enumerate(self.sites.values())
            for name, parts in by_statistic.items()
            for part, held in parts.items()
            for array, tensor in held.arrays.items()
        }

    def header(self) -> dict[str, Any]:
        """Everything else."""
        return {
            "sites": list(self.sites),
            "examples": self.examples,
            "tokens": self.tokens,
            "cut": self.cut,
            "failures": [list(failure) for failure in self.failures],
            "left_out": self.left_out,
        }

    @classmethod
    def of(
        cls,
        statistics: Mapping[str, Statistic],
        header: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
    ) -> State:
        """A state that was saved."""
        state = cls(
            statistics,
            examples=header["examples"],
            tokens=header["tokens"],
            cut=header["cut"],
            failures=[Failure(*failure) for failure in header["failures"]],
            left_out=dict(header["left_out"]),
            weights=header.get("weights", ""),
        )
        for number, site in enumerate(header["sites"]):
            for name, parts in state.parts(site).items():
                for part, held in parts.items():
                    held.arrays = under(f"{number}/{name}/{part}/", tensors)
        return state

    def equals(self, other: State) -> bool:
        """Whether both know the same, to the last bit."""
        mine, theirs = self.tensors(), other.tensors()
        return (
            self.header() == other.header()
            and mine.keys() == theirs.keys()
            and all(torch.equal(mine[name], theirs[name]) for name in mine)
        )
