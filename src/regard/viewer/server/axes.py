"""Positions as the rows and columns of a map: pieces or words, special tokens shown or folded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.viewer.scene import Line
from regard.viewer.server.asked import Special, Unit

_GAP = 64  # positions between two runs that are made as one


@dataclass(frozen=True)
class Axis:
    """Which positions each row or column stands for; `members` is None where each is its own."""

    size: int
    members: list[list[int]] | None = None

    @classmethod
    def of(cls, line: Line, unit: Unit, special: Special) -> Axis:
        """The axis of a sequence. Folded special tokens are one row or column, the last."""
        words = line.words if unit == "words" else None
        if words is None and special == "shown":
            return cls(len(line.tokens))
        if words is None:
            groups = [[place] for place in range(len(line.tokens))]
        else:
            groups = [[] for _ in words.names]
            for place, word in enumerate(words.pieces):
                if word is not None:
                    groups[word].append(place)
        if special == "folded":
            groups = _folded(groups, line.special)
        return cls(len(groups), groups)

    def positions(self, where: slice) -> list[int]:
        """All positions of some rows, in order."""
        if self.members is None:
            return list(range(where.start, where.stop))
        return sorted(place for group in self.members[where] for place in group)

    def summed(self, values: Tensor, where: slice, given: list[slice], axis: int) -> Tensor:
        """The sum over the positions of each row in `where`; `values` are of the ranges `given`."""
        if self.members is None:
            return values
        places = [place for part in given for place in range(part.start, part.stop)]
        found = {place: index for index, place in enumerate(places)}
        pairs = [
            (found[place], row) for row, group in enumerate(self.members[where]) for place in group
        ]
        source, target = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).unbind(1)
        sizes = list(values.shape)
        sizes[axis] = where.stop - where.start
        return values.new_zeros(sizes).index_add_(axis, target, values.index_select(axis, source))

    def mean(self, values: Tensor, where: slice, given: list[slice]) -> Tensor:
        """The mean over the positions of each row in `where`."""
        if self.members is None:
            return values
        counts = torch.tensor([max(1, len(group)) for group in self.members[where]]).float()
        return self.summed(values, where, given, 0) / counts[:, None]


def runs(positions: list[int]) -> list[slice]:
    """Ranges that cover positions; those that lie close are one."""
    found: list[slice] = []
    for place in positions:
        if found and place - found[-1].stop <= _GAP:
            found[-1] = slice(found[-1].start, place + 1)
        else:
            found.append(slice(place, place + 1))
    return found


def _folded(groups: list[list[int]], special: list[bool]) -> list[list[int]]:
    """Groups of special tokens as one, the last."""
    alone = [bool(group) and all(special[place] for place in group) for group in groups]
    others = [group for group, folded in zip(groups, alone) if not folded]
    together = [place for group, folded in zip(groups, alone) if folded for place in group]
    return [*others, together] if together else others
