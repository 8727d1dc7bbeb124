"""Rotary positions: pairs of features turned by an angle, and scalings for longer texts (linear,
NTK, YaRN)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ShapeError


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
