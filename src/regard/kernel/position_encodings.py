"""Positions as functions and biases: rotary, sinusoids, ALiBi, relative tables of one axis or two,
bucketed tables. Biases are evaluated block by block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import Bias
from regard.errors import ShapeError
from regard.types import Block, register_pytree


class RotaryScaling(ABC):
    """Rotary rates for texts longer than those a model was trained on. It holds numbers only."""

    amplitude: float = 1.0  #: what turned queries and keys are multiplied by, each

    @abstractmethod
    def rates(self, plain: Float[Tensor, " pair"], base: float) -> Float[Tensor, " pair"]:
        """The angle a position that each pair of features turns by, from the plain ones."""


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Position interpolation (Chen et al. 2023): every position divided by `factor`."""

    factor: float

    def rates(self, plain: Float[Tensor, " pair"], base: float) -> Float[Tensor, " pair"]:
        return plain / self.factor


@dataclass(frozen=True)
class NtkScaling(RotaryScaling):
    """NTK-aware scaling (bloc97 2023): base · factor^(d / (d − 2)), so that the slowest of the
    d / 2 pairs turns `factor` times slower and the fastest as before.

    The variant that recomputes the factor as a text grows is left out: keys that are already in a
    cache would have to be turned again.
    """

    factor: float

    def rates(self, plain: Float[Tensor, " pair"], base: float) -> Float[Tensor, " pair"]:
        pairs = len(plain)
        if pairs < 2:
            return plain
        steps = torch.arange(pairs, dtype=plain.dtype, device=plain.device)
        return plain * self.factor ** (-steps / (pairs - 1))


@dataclass(frozen=True)
class YarnScaling(RotaryScaling):
    """YaRN (Peng et al. 2023, sections 3.2 to 3.4): pairs that turn often within the original
    length stay as they are, pairs that turn less than once are slowed by `factor`, those between
    are blended; and scores grow by (0.1 · ln factor + 1)².

    | here              | paper | meaning                                                  |
    |-------------------|-------|----------------------------------------------------------|
    | `factor`          | s     | how many times longer                                    |
    | `original`        | L     | positions that the model was trained on                  |
    | `fast`, `slow`    | β, α  | turns within L from which, up to which, a pair is blended |

    The blend is linear between whole pair numbers, as in the authors' code.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0

    @property
    def amplitude(self) -> float:  # type: ignore[override]
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def rates(self, plain: Float[Tensor, " pair"], base: float) -> Float[Tensor, " pair"]:
        pairs = len(plain)

        def pair(turns: float) -> float:
            """The pair that turns so often within the original length."""
            return pairs * math.log(self.original / (turns * 2 * math.pi)) / math.log(base)

        first = max(math.floor(pair(self.fast)), 0)
        last = min(math.ceil(pair(self.slow)), 2 * pairs - 1)
        steps = torch.arange(pairs, dtype=plain.dtype, device=plain.device)
        slowed = ((steps - first) / max(last - first, 1e-3)).clamp(0, 1)
        return plain * (1 - slowed) + plain / self.factor * slowed


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


def rotate(
    features: Float[Tensor, "batch head position width"],
    positions: Int[Tensor, " position *axis"],
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
) -> Float[Tensor, "batch head position width"]:
    """Turn pairs of features by an angle that grows with the position (Su et al. 2021, eq. 34).

    Feature i is paired with feature i + width/2 and turned by position · base^(−2i/width), so
    that the dot product of two turned vectors depends on their distance alone. Of positions
    (position, axis) each axis turns its share of the pairs, and products depend on the distance
    along each (Heo et al. 2024, "Rotary position embedding for vision transformer", section 3.2).
    """
    return turn(features, *rotary_table(features, positions, base, scaling))


def rotary_table(
    features: Float[Tensor, "*_ width"],
    positions: Int[Tensor, " position *axis"],
    base: float = 10000.0,
    scaling: RotaryScaling | None = None,
) -> tuple[Float[Tensor, "position width"], Float[Tensor, "position width"]]:
    """What `turn` multiplies features by, in float32 or finer: cosine and signed sine."""
    positions = positions if positions.dim() == 2 else positions[:, None]
    width, axes = features.shape[-1], positions.shape[1]
    pairs = width // (2 * axes)  # of each axis
    if 2 * axes * pairs != width:
        expected = "an even number" if axes == 1 else f"a multiple of {2 * axes}"
        raise ShapeError(f"rotate: width is {width}, expected {expected}")
    dtype = torch.promote_types(features.dtype, torch.float32)
    rates = base ** (-torch.arange(pairs, dtype=dtype, device=features.device) / pairs)
    rates = rates if scaling is None else scaling.rates(rates, base)
    angles = (positions.to(dtype)[:, :, None] * rates).flatten(1)  # (position, width/2)
    cosine, sine = angles.cos(), angles.sin()
    if scaling is not None:
        cosine, sine = cosine * scaling.amplitude, sine * scaling.amplitude
    return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)


def turn(
    features: Float[Tensor, "batch head position width"],
    cosine: Float[Tensor, "position width"],
    sine: Float[Tensor, "position width"],
) -> Float[Tensor, "batch head position width"]:
    """Feature i and feature i + width/2 turned by the angle of their position."""
    exact = features if features.dtype == cosine.dtype else features.to(cosine.dtype)
    swapped = exact.roll(exact.shape[-1] // 2, dims=-1)
    turned = torch.addcmul(exact * cosine, swapped, sine)
    return turned if exact is features else turned.to(features.dtype)


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
