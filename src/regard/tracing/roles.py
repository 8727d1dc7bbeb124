"""Which axis of found weights is batch, head, query and key: told by the product that used them.

The axis summed over is the keys; axes among the rows of the product are queries; axes that weights
and values share are batch and heads. Which of those is which, the module (its `num_heads`) and the
way the values lie in memory tell: heads are cut out of the features, so they lie closer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from regard.record.held import Layout
from regard.tracing.tags import Axis, Mark, Spread, covering

if TYPE_CHECKING:
    from regard.tracing.tags import Box


@dataclass(frozen=True)
class Contraction:
    """Weights that met values: the product, and which of its axes was summed."""

    weights: Tensor
    contracted: int
    rows: int | None
    values: Tensor
    made: Tensor
    mark: Mark
    swapped: bool = False  # values first
    constant: bool | None = None
    spread: Spread | None = None

    @classmethod
    def of_sum(cls, spread: Spread, given: Tensor, made: Tensor) -> Contraction:
        """Weights times values, summed."""
        assert spread.value is not None
        return cls(
            given,
            -1,
            None,
            spread.value,
            made,
            spread.mark,
            constant=spread.constant,
            spread=spread,
        )

    @property
    def box(self) -> Box | None:
        return self.mark.before if self.spread is None else self.spread.box

    def tensor(self) -> Tensor | None:
        """The tensor whose storage holds the weights before dropout."""
        return self.weights if self.box is None else self.box.tensor

    def layout(
        self,
        heads: set[int],
        widths: set[int],
        copied: tuple[tuple[int, ...], tuple[int, ...]] | None,
        features: int = 0,
    ) -> Layout:
        """How (batch, head, query, key) lie in that storage.

        Args:
            heads: numbers of heads the module speaks of.
            widths: sizes of its parameters.
            features: how many features the linear map behind the values makes, where known.
            copied: sizes and strides of the values before they were copied, where they were.
        """
        key = self.mark.candidate.key
        query, shared, singles = self._sort(key)
        lying = self._lying()
        heads_on_rows = [index for index in query if lying[index][0] in heads]
        if heads_on_rows == query and query and singles and singles[-1] > query[-1]:
            shared, query = [*shared, *query], []  # one query of heads that share the keys
        if not query and singles and len(shared) >= 3:  # every query has keys of its own
            sizes = [lying[index][0] for index in shared]
            grouped = any(math.prod(sizes[start:]) in heads for start in range(1, len(sizes)))
            at = [index for index in shared[:-1] if lying[index][0] in heads]
            if at and not grouped:
                query = [index for index in shared if index > at[-1]]
                shared, singles = [index for index in shared if index not in query], []
        if not query and singles:  # one query: the last axis of size one stands for it
            query = [singles.pop()]
        shared = sorted([*shared, *singles])
        query, shared = self._folded(query, shared, heads, lying)
        batch, head = self._split(shared, heads, copied, lying, widths, features)
        axes = (batch, head, [lying[index] for index in query], [lying[key]])
        offset = int(self.weights.storage_offset()) if self.box is None else self.box.offset
        return Layout(tuple(tuple(part) for part in axes), offset)

    def _sort(self, key: int) -> tuple[list[int], list[int], list[int]]:
        """Axes of the weights by what the product does with them: queries, shared, size one."""
        query: list[int] = []
        shared: list[int] = []
        singles: list[int] = []
        axes = self.mark.axes if self.spread is None else self.spread.axes
        for index, axis in enumerate(axes):
            if index == key:
                continue
            dim = covering(axis, self.weights)
            if dim is None:
                singles.append(index)
            elif self.spread is not None:
                (query if index in self.spread.over else shared).append(index)
            elif dim == self.rows:
                query.append(index)
            else:
                shared.append(index)
        return query, shared, singles

    def _lying(self) -> list[Axis]:
        """Sizes and strides of the axes where the weights lie, cut to what was used."""
        if self.box is not None:
            return list(self.box.axes)
        from regard.tracing.flow import trimmed

        return list(trimmed(self.mark.axes, self.weights))

    def _folded(
        self, query: list[int], shared: list[int], heads: set[int], lying: list[Axis]
    ) -> tuple[list[int], list[int]]:
        """Several axes among the rows: heads (that share one key head) or batch folded in."""
        if len(query) < 2:
            return query, shared
        *first, last = query
        if len(shared) >= 2 and not any(lying[index][0] in heads for index in first):
            return query, shared  # queries on a grid
        if len(shared) == 1 and heads and not any(lying[index][0] in heads for index in first):
            return query, shared
        return [last], sorted([*shared, *first])

    def _split(
        self,
        shared: list[int],
        heads: set[int],
        copied: tuple[tuple[int, ...], tuple[int, ...]] | None,
        lying: list[Axis],
        widths: set[int],
        features: int,
    ) -> tuple[list[Axis], list[Axis]]:
        """Batch axes and head axes."""
        axes = [lying[index] for index in shared]
        lay = self._heads_lay(shared, copied) if len(shared) == 2 else None
        if lay is not None and (not heads or lying[lay][0] in heads):
            (other,) = (index for index in shared if index != lay)
            return [lying[other]], [lying[lay]]
        if len(axes) <= 1:
            return self._unmerged(axes, heads, copied, widths, features)
        if len(axes) == 2:
            one, two = axes
            swap = one[0] in heads and two[0] not in heads
            return ([two], [one]) if swap else ([one], [two])
        for count in range(len(axes) - 1, 0, -1):  # as many as make up the heads
            if math.prod(length for length, _ in axes[-count:]) in heads:
                return axes[:-count], axes[-count:]
        by_name = [index for index in range(1, len(axes)) if axes[index][0] in heads]
        if by_name:
            return [axis for index, axis in enumerate(axes) if index != by_name[0]], [
                axes[by_name[0]]
            ]
        return axes[:-1], axes[-1:]

    def _unmerged(
        self,
        axes: list[Axis],
        heads: set[int],
        copied: tuple[tuple[int, ...], tuple[int, ...]] | None,
        widths: set[int],
        features: int,
    ) -> tuple[list[Axis], list[Axis]]:
        """One axis: the batch, or batch and heads in one."""
        if not axes or self.values.dim() != 3:
            return axes, []
        size, stride = axes[0]
        if copied is not None and copied[0][0] * copied[0][1] == size and len(copied[0]) == 4:
            (first, second), (far, near) = copied[0][:2], copied[1][:2]
            outer, inner = (first, stride * second), (second, stride)
            return ([inner], [outer]) if far < near else ([outer], [inner])
        values = self.values.mT if self.swapped else self.values
        width = values.shape[2]
        cut = values.stride(0) == width  # heads cut out of the features
        whole = values.is_contiguous()  # or copied: then their widths must make up the features
        for number in sorted(heads, reverse=True):
            if size % number == 0 and size > 1 and (cut or (whole and number * width in widths)):
                return [(size // number, stride * number)], [(number, stride)]
        if cut and size > 1:  # nobody says how many: as many as the features hold
            number = features // width if features % width == 0 else size
            number = number if number and size % number == 0 else size
            return [(size // number, stride * number)], [(number, stride)]
        return axes, []

    def _heads_lay(
        self, shared: list[int], copied: tuple[tuple[int, ...], tuple[int, ...]] | None
    ) -> int | None:
        """Which of two axes are the heads, by how the values lay before they were copied."""
        if copied is None or self.spread is not None or 1 in copied[0][:2]:
            return None
        outer, inner = sorted(shared, key=lambda index: -self.mark.axes[index][1])
        sizes = (self.mark.axes[outer][0], self.mark.axes[inner][0])
        if sizes != copied[0][:2]:
            return None
        return outer if copied[1][0] < copied[1][1] else inner
