"""Positions as the rows and columns of a map: pieces or words, special tokens shown, folded or
hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.viewer.scene import Line
from regard.viewer.server.maps.map_query import Special, Unit

_GAP = 64  # positions between two ranges that are joined


@dataclass(frozen=True)
class Axis:
    """Which positions each row or column stands for; `members` is None where each is its own."""

    size: int
    members: list[list[int]] | None = None

    @classmethod
    def of(cls, line: Line, unit: Unit, special: Special) -> Axis:
        """The axis of a sequence. Special tokens that are folded are one row or column, the last;
        hidden ones are none."""
        words = line.words if unit == "words" else None
        if words is None and special == "shown":
            return cls(len(line.tokens))
        if words is None:
            groups = [[position] for position in range(len(line.tokens))]
        else:
            groups = [[] for _ in words.names]
            for position, word in enumerate(words.pieces):
                if word is not None:
                    groups[word].append(position)
        if special != "shown":
            groups = _without_special(groups, line.special, folded=special == "folded")
        return cls(len(groups), groups)

    def positions(self, where: slice) -> list[int]:
        """All positions of some rows, in order."""
        if self.members is None:
            return list(range(where.start, where.stop))
        return sorted(position for group in self.members[where] for position in group)

    def summed(self, values: Tensor, where: slice, ranges: list[slice], axis: int) -> Tensor:
        """The sum over the positions of each row in `where`; `values` are of `ranges`."""
        if self.members is None:
            return values
        positions = [position for span in ranges for position in range(span.start, span.stop)]
        index_of = {position: index for index, position in enumerate(positions)}
        pairs = [
            (index_of[position], row)
            for row, group in enumerate(self.members[where])
            for position in group
        ]
        source, target = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).unbind(1)
        sizes = list(values.shape)
        sizes[axis] = where.stop - where.start
        return values.new_zeros(sizes).index_add_(axis, target, values.index_select(axis, source))

    def mean(self, values: Tensor, where: slice, ranges: list[slice]) -> Tensor:
        """The mean over the positions of each row in `where`."""
        if self.members is None:
            return values
        counts = torch.tensor([max(1, len(group)) for group in self.members[where]]).float()
        return self.summed(values, where, ranges, 0) / counts[:, None]


def runs(positions: list[int]) -> list[slice]:
    """Ranges that cover positions; close ones are joined."""
    ranges: list[slice] = []
    for position in positions:
        if ranges and position - ranges[-1].stop <= _GAP:
            ranges[-1] = slice(ranges[-1].start, position + 1)
        else:
            ranges.append(slice(position, position + 1))
    return ranges


def _without_special(
    groups: list[list[int]], special: list[bool], *, folded: bool
) -> list[list[int]]:
    """Groups that are not special; folded, the special ones are one more, the last."""
    alone = [bool(group) and all(special[position] for position in group) for group in groups]
    others = [group for group, folded in zip(groups, alone) if not folded]
    together = [position for group, folded in zip(groups, alone) if folded for position in group]
    return [*others, together] if together and folded else others
