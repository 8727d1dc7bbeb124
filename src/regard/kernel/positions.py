"""Positions as functions and biases: rotary, ALiBi, relative tables. Evaluated block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import Bias
from regard.errors import ShapeError
from regard.types import Block, register_pytree


def rotate(
    features: Float[Tensor, "batch head position width"],
    positions: Int[Tensor, " position"],
    base: float = 10000.0,
) -> Float[Tensor, "batch head position width"]:
    """Turn pairs of features by an angle that grows with the position (Su et al. 2021, eq. 34).

    Feature i is paired with feature i + width/2 and turned by position · base^(−2i/width), so
    that the dot product of two turned vectors depends on their distance alone.
    """
    return turn(features, *rotary_table(features, positions, base))


def rotary_table(
    features: Float[Tensor, "*_ width"], positions: Int[Tensor, " position"], base: float = 10000.0
) -> tuple[Float[Tensor, "position width"], Float[Tensor, "position width"]]:
    """What `turn` multiplies features by, in float32 or finer: cosine and signed sine."""
    half = features.shape[-1] // 2
    if 2 * half != features.shape[-1]:
        raise ShapeError(f"rotate: width is {features.shape[-1]}, expected an even number")
    dtype = torch.promote_types(features.dtype, torch.float32)
    rates = base ** (-torch.arange(half, dtype=dtype, device=features.device) / half)
    angles = positions.to(dtype)[:, None] * rates  # (position, width/2)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


def turn(
    features: Float[Tensor, "batch head position width"],
    cosine: Float[Tensor, "position width"],
    sine: Float[Tensor, "position width"],
) -> Float[Tensor, "batch head position width"]:
    """Feature i and feature i + width/2 turned by the angle of their position."""
    exact = features.to(cosine.dtype)
    swapped = exact.roll(exact.shape[-1] // 2, dims=-1)
    return (exact * cosine + swapped * sine).to(features.dtype)


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
        one = slice(head, head + 1) if len(self.slopes) > 1 else slice(None)
        return AlibiBias(self.slopes[one])

    def of_heads(self, which: Sequence[int]) -> AlibiBias:
        return self if self.heads == 1 else AlibiBias(self.slopes[list(which)])

    @property
    def heads(self) -> int:
        return len(self.slopes)

    @property
    def requires_grad(self) -> bool:
        return self.slopes.requires_grad


@dataclass(frozen=True, eq=False, repr=False)
class RelativeTable(Bias):
    """table[head, clip(key position − query position)], offsets −reach … reach."""

    table: Float[Tensor, "head offset"]

    def __post_init__(self) -> None:
        if self.table.dim() == 2 and self.table.shape[1] % 2 == 0:
            raise ShapeError(
                f"RelativeTable: axis offset has size {self.table.shape[1]}, expected an odd number"
            )

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        reach = self.table.shape[1] // 2
        return self.table[:, _offsets(block, self.table.device).clamp(-reach, reach) + reach][None]

    def at(self, batch: int, head: int) -> RelativeTable:
        one = slice(head, head + 1) if len(self.table) > 1 else slice(None)
        return RelativeTable(self.table[one])

    def of_heads(self, which: Sequence[int]) -> RelativeTable:
        return self if self.heads == 1 else RelativeTable(self.table[list(which)])

    @property
    def heads(self) -> int:
        return len(self.table)

    @property
    def requires_grad(self) -> bool:
        return self.table.requires_grad


register_pytree(AlibiBias)
register_pytree(RelativeTable)


def _offsets(block: Block, device: torch.device) -> Int[Tensor, "query key"]:
    """Key position minus query position."""
    rows = torch.arange(block.top, block.bottom, device=device) + block.offset
    return torch.arange(block.left, block.right, device=device) - rows[:, None]
