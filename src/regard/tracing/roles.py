"""Which axis of found weights is batch, head, query and key: told by the product that used them.

The axis summed over is the keys; axes among the rows of the product are queries; axes that weights
and values share are batch and heads. Which of those is which, the module (its `num_heads`) and the
way the values lie in memory tell: heads are cut out of the features, so they lie closer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from regard.record.held import Layout
from regard.tracing.tags import Axis, Box, Mark, Spread, covering, trimmed

Copied = tuple[tuple[int, ...], tuple[int, ...]] | None


class Part(NamedTuple):
    """An axis of the weights, or a part of one in which two were merged."""

    axis: int  # which one of the mark
    size: int
    step: int = 1  # how many of the axis's own steps one step is


class Clues(NamedTuple):
    """What else is known about a product that attended."""

    heads: set[int]  #: numbers of heads the module speaks of
    widths: set[int]  #: sizes of its parameters
    copied: Copied  #: sizes and strides of the values before they were copied
    features: int  #: how many features the linear map behind the values makes


class Roles(NamedTuple):
    """The parts that make up each axis of (batch, head, query, key)."""

    batch: list[Part]
    head: list[Part]
    query: list[Part]
    key: list[Part]


@dataclass(frozen=True)
class Contraction:
    """Weights that met values: the product, and which of its axes was summed."""

    weights: Tensor
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
        return cls(
            given, None, spread.value, made, spread.mark, constant=spread.constant, spread=spread
        )

    @property
    def box(self) -> Box | None:
        return self.mark.before if self.spread is None else self.spread.box

    def tensor(self) -> Tensor | None:
        """The tensor whose storage holds the weights before dropout."""
        return self.weights if self.box is None else self.box.tensor

    def layout(self, roles: Roles) -> Layout:
        """How (batch, head, query, key) lie in that storage."""
        lying = self._lying()
        axes = tuple(
            tuple((part.size, lying[part.axis][1] * part.step) for part in parts) for parts in roles
        )
        offset = int(self.weights.storage_offset()) if self.box is None else self.box.offset
        return Layout(axes, offset)

    def value(self, roles: Roles) -> Layout | None:
        """How (batch, group, key, width) lie among the values, where the product shows them so."""
        values = self.values.mT if self.swapped else self.values
        offset = int(values.storage_offset())
        inner = tuple(
            ((size, step),) for size, step in zip(values.shape[-2:], values.stride()[-2:])
        )
        batch = math.prod(part.size for part in roles.batch)
        if self.spread is not None:
            return None
        if values.dim() == 2:
            return Layout((((batch, 0),), (), *inner), offset)
        shared = math.prod(part.size for part in [*roles.batch, *roles.head])
        if shared != values.shape[0]:
            whole = ((batch, values.stride(0)),)
            return Layout((whole, (), *inner), offset) if values.shape[0] == batch else None
        outer = max(1, self.weights.stride(0))
        axes = tuple(
            tuple(
                (part.size, values.stride(0) * (self.mark.axes[part.axis][1] * part.step // outer))
                for part in parts
            )
            for parts in (roles.batch, roles.head)
        )
        return Layout((*axes, *inner), offset)

    def roles(self, clues: Clues) -> Roles:
        """Which axis is which."""
        key = self.mark.candidate.key
        lying = self._lying()
        size = [axis[0] for axis in lying]
        query, shared, singles = self._sort(key)
        heads = clues.heads
        if query and singles and singles[-1] > query[-1] and all(size[i] in heads for i in query):
            shared, query = [*shared, *query], []  # one query of heads that share the keys
        if not query and singles and len(shared) >= 3:  # every query has keys of its own
            sizes = [size[index] for index in shared]
            grouped = any(math.prod(sizes[start:]) in heads for start in range(1, len(sizes)))
            at = [index for index in shared[:-1] if size[index] in heads]
            if at and not grouped:
                query = [index for index in shared if index > at[-1]]
                shared, singles = [index for index in shared if index not in query], []
        if not query and singles:  # one query: the last axis of size one stands for it
            query = [singles.pop()]
        shared = sorted([*shared, *singles])
        query, shared = _folded(query, shared, heads, size)
        batch, head = self._split(shared, clues, size)
        return Roles(
            batch, head, [Part(index, size[index]) for index in query], [Part(key, size[key])]
        )

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
        return list(trimmed(self.mark.axes, self.weights))

    def _split(
        self, shared: list[int], clues: Clues, size: list[int]
    ) -> tuple[list[Part], list[Part]]:
        """Batch axes and head axes."""
        parts = [Part(index, size[index]) for index in shared]
        if len(parts) <= 1:
            return self._unmerged(parts, clues)
        head = self._head(shared, clues, size)
        if head is not None:
            return [part for part in parts if part.axis != head], [Part(head, size[head])]
        for count in range(len(parts) - 1, 0, -1):  # as many as make up the heads
            if math.prod(part.size for part in parts[-count:]) in clues.heads:
                return parts[:-count], parts[-count:]
        return parts[:-1], parts[-1:]

    def _head(self, shared: list[int], clues: Clues, size: list[int]) -> int | None:
        """The one axis that is the heads, where something tells."""
        lay = self._heads_lay(shared, clues.copied) if len(shared) == 2 else None
        if lay is not None and (not clues.heads or size[lay] in clues.heads):
            return lay
        if len(shared) == 2:
            one, two = shared
            return one if size[one] in clues.heads and size[two] not in clues.heads else two
        sizes = [size[index] for index in shared]
        if any(math.prod(sizes[start:]) in clues.heads for start in range(1, len(sizes))):
            return None
        return next((index for index in shared[1:] if size[index] in clues.heads), None)

    def _heads_lay(self, shared: list[int], copied: Copied) -> int | None:
        """Which of two axes are the heads, by how the values lay before they were copied."""
        if copied is None or self.spread is not None or 1 in copied[0][:2]:
            return None
        outer, inner = sorted(shared, key=lambda index: -self.mark.axes[index][1])
        if (self.mark.axes[outer][0], self.mark.axes[inner][0]) != copied[0][:2]:
            return None
        return outer if copied[1][0] < copied[1][1] else inner

    def _unmerged(self, parts: list[Part], clues: Clues) -> tuple[list[Part], list[Part]]:
        """One axis: the batch, or batch and heads in one."""
        if not parts or self.values.dim() != 3 or parts[0].size == 1:
            return parts, []
        index, size, _ = parts[0]
        copied = clues.copied
        if copied is not None and len(copied[0]) == 4 and math.prod(copied[0][:2]) == size:
            (first, second), (far, near) = copied[0][:2], copied[1][:2]
            outer, inner = Part(index, first, second), Part(index, second)
            return ([inner], [outer]) if far < near else ([outer], [inner])
        values = self.values.mT if self.swapped else self.values
        width = values.shape[2]
        cut = values.stride(0) == width  # heads cut out of the features
        whole = values.is_contiguous()  # or copied: then their widths must make up the features
        for number in sorted(clues.heads, reverse=True):
            if size % number == 0 and (cut or (whole and number * width in clues.widths)):
                return [Part(index, size // number, number)], [Part(index, number)]
        if cut:  # nobody says how many: as many as the features hold
            number = clues.features // width if clues.features % width == 0 else size
            number = number if number and size % number == 0 else size
            return [Part(index, size // number, number)], [Part(index, number)]
        return parts, []


def _folded(
    query: list[int], shared: list[int], heads: set[int], size: list[int]
) -> tuple[list[int], list[int]]:
    """Several axes among the rows: heads (that share one key head) or batch folded in."""
    if len(query) < 2:
        return query, shared
    *first, last = query
    named = any(size[index] in heads for index in first)
    if not named and (len(shared) >= 2 or (len(shared) == 1 and heads)):
        return query, shared  # queries on a grid
    return [last], sorted([*shared, *first])
