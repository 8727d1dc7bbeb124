"""Positions as functions and biases: sinusoids, ALiBi, relative tables of one axis or two, bucketed
tables. Biases are evaluated block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import Bias
from regard.errors import ShapeError
from regard.types import Block, register_pytree


def sinusoids(
    positions: Int[Tensor, "*axes"], width: int, base: float = 10000.0
) -> Float[Tensor, "*axes width"]:
    """sin(p · rᵢ) in the first half of the features, cos(p · rᵢ) in the second, in float64, with
    rᵢ = base^(−2i/width) (Vaswani et al. 2017, section 3.5, in another order)."""
    rates = base ** (
        -torch.arange(width // 2, dtype=torch.float64, device=positions.device) * 2 / width
    )
    angles = positions[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def alibi_slopes(n_heads: int) -> Float[Tensor, " head"]:
    """Slopes 2^(−8h/n) of ALiBi (Press et al. 2022); for other than powers of two the paper's
    code fills up with every second slope of the next power."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2.0 ** (-8.0 * head / power) for head in range(1, power + 1)]
    more = [2.0 ** (-4.0 * head / power) for head in range(1, 2 * (n_heads - power) + 1, 2)]
    return torch.tensor(slopes + more)


@dataclass(frozen=True, eq=False, repr=False)
class AlibiBias(Bias):
    """−slope · |query position − key position|, one slope a head."""

    slopes: Float[Tensor, " head"]

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        return -slopes[None, :, None, None] * _offsets(block, slopes.device).abs()

    def at(self, batch: int, head: int) -> AlibiBias:
        own = slice(head, head + 1) if len(self.slopes) > 1 else slice(None)
        return AlibiBias(self.slopes[own])

    def of_heads(self, which: Sequence[int]) -> AlibiBias:
        return self if self.heads == 1 else AlibiBias(self.slopes[list(which)])

    @property
    def heads(self) -> int:
        return len(self.slopes)

    @property
    def requires_grad(self) -> bool:
        return self.slopes.requires_grad


@dataclass(frozen=True, eq=False, repr=False)
class _TableBias(Bias):
    """A row of numbers for each head, or one for all, by what lies between query and key."""

    table: Float[Tensor, "head distance"]

    def at(self, batch: int, head: int) -> Bias:
        own = slice(head, head + 1) if len(self.table) > 1 else slice(None)
        return replace(self, table=self.table[own])

    def of_heads(self, which: Sequence[int]) -> Bias:
        return self if self.heads == 1 else replace(self, table=self.table[list(which)])

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def requires_grad(self) -> bool:
        return self.table.requires_grad


@dataclass(frozen=True, eq=False, repr=False)
class RelativeTable(_TableBias):
    """table[head, clip(key position − query position)], offsets −reach … reach."""

    def __post_init__(self) -> None:
        if self.table.dim() == 2 and self.table.shape[1] % 2 == 0:
            raise ShapeError(
                f"RelativeTable: axis offset has size {self.table.shape[1]}, expected an odd number"
            )

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        reach = self.table.shape[1] // 2
        return self.table[:, _offsets(block, self.table.device).clamp(-reach, reach) + reach][None]


@dataclass(frozen=True, eq=False, repr=False)
class GridTable(_TableBias):
    """table[head, clip(dy), clip(dx)], where (dy, dx) is the key's place minus the query's in an
    image whose positions are counted row by row.

    `first` positions before the image, as a class token, get and give 0.
    """

    table: Float[Tensor, "head dy dx"]
    columns: int
    first: int = 0

    def __post_init__(self) -> None:
        for axis, size in zip(("dy", "dx"), self.table.shape[1:]):
            if size % 2 == 0:
                raise ShapeError(f"GridTable: axis {axis} has size {size}, expected an odd number")

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        device = self.table.device
        query = torch.arange(block.top, block.bottom, device=device) + block.offset - self.first
        key = torch.arange(block.left, block.right, device=device) - self.first
        indices = []
        for axis, size in zip((0, 1), self.table.shape[1:]):
            at = [p // self.columns if axis == 0 else p % self.columns for p in (query, key)]
            reach = size // 2
            indices.append((at[1] - at[0][:, None]).clamp(-reach, reach) + reach)
        inside = (query[:, None] >= 0) & (key >= 0)
        return self.table[:, indices[0], indices[1]].masked_fill(~inside, 0.0)[None]


@dataclass(frozen=True, eq=False, repr=False)
class BucketedTable(_TableBias):
    """table[head, bucket of key position − query position], as T5 has it.

    Half of the buckets hold one offset each, the other half ranges that grow by a constant factor
    up to `distance`; all beyond share the last one. With `both_ways` keys before and after the
    query have half of the buckets each, else every key after it has the bucket of offset 0.
    """

    distance: int = 128
    both_ways: bool = True

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        return self.table[:, self.buckets(_offsets(block, self.table.device))][None]

    def buckets(self, offsets: Int[Tensor, "query key"]) -> Int[Tensor, "query key"]:
        """The bucket of each key position minus query position."""
        count, before = self.table.shape[1], (-offsets).clamp_min(0)
        start = torch.zeros_like(offsets)
        if self.both_ways:
            count //= 2
            start, before = count * (offsets > 0), offsets.abs()
        single = count // 2
        growth = (before.clamp_min(single).float() / single).log()
        growth = growth / math.log(self.distance / single) * (count - single)
        shared = (single + growth.long()).clamp_max(count - 1)
        return start + torch.where(before < single, before, shared)


register_pytree(AlibiBias)
register_pytree(RelativeTable)
register_pytree(GridTable, static=("columns", "first"))
register_pytree(BucketedTable, static=("distance", "both_ways"))


def _offsets(block: Block, device: torch.device) -> Int[Tensor, "query key"]:
    """Key position minus query position."""
    rows = torch.arange(block.top, block.bottom, device=device) + block.offset
    return torch.arange(block.left, block.right, device=device) - rows[:, None]
