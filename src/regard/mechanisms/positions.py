"""Position parts that a mechanism takes: `Rotary`, `Alibi`, `RelativeBias`, `BucketedBias`; of
images, `GridRotary` and `GridBias`."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.bias import Bias
from regard.errors import RegardError, ShapeError
from regard.kernel.position_encodings import (
    AlibiBias,
    BucketedTable,
    GridTable,
    RelativeTable,
    alibi_slopes,
)
from regard.kernel.rotary import RotaryScaling, rotary_table, turn
from regard.types import is_eager


class Position(nn.Module):
    """How a mechanism knows where things are: it turns features, or gives a bias, or both."""

    def turn(
        self, features: Float[Tensor, "batch head position width"], start: int
    ) -> Float[Tensor, "batch head position width"]:
        """Features whose first position is `start`, with the position worked in."""
        return features

    def bias(self) -> Bias | None:
        """What to add to the scores."""
        return None


class Rotary(Position):
    """Rotary positions (Su et al. 2021): queries and keys turned by their position.

    The cosines and sines are computed once for each device, dtype and width, and again where a
    longer input comes. They are no part of the state dict, and are not copied with the module.

    Args:
        base: θ; pair i of a head's d features turns by position · base^(−2i/d).
        share: which part of the features is turned, the first ones; the rest stays as it is.
        scaling: for longer texts than in training: `LinearScaling(2.0)`, `NtkScaling(2.0)` or
            `YarnScaling(4.0, original=4096)`.
    """

    def __init__(
        self, *, base: float = 10000.0, share: float = 1.0, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        if not 0.0 < share <= 1.0:
            raise RegardError(f"Rotary: share={share}, expected a number above 0 and up to 1")
        if scaling is not None and not isinstance(scaling, RotaryScaling):
            raise RegardError(
                f"Rotary: scaling={scaling!r}, expected a part, as LinearScaling(2.0)"
            )
        self.base, self.share, self.scaling = base, share, scaling
        self._tables: dict[tuple[torch.device, torch.dtype, int], tuple[Tensor, Tensor]] = {}
        self._made_with: tuple[Any, ...] = ()

    def turn(self, features: Tensor, start: int) -> Tensor:
        width = features.shape[3]
        count = int(width * self.share)
        if count < width and (count == 0 or count % 2):
            raise ShapeError(
                f"Rotary: share={self.share} of {width} features is {count}, expected an even "
                "number from 2"
            )
        turned = features if count == width else features[..., :count]
        turned = turn(turned, *self._table(turned, start, start + features.shape[2]))
        return turned if count == width else torch.cat([turned, features[..., count:]], dim=-1)

    def _table(self, features: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the positions from `start` to `stop`."""
        if start < 0 or not is_eager(features):  # what a graph traces must not outlive it
            positions = torch.arange(stop - start, device=features.device) + start
            return rotary_table(features, self._coordinates(positions), self.base, self.scaling)
        if self._made_with != self._settings():  # somebody has set another
            self._tables, self._made_with = {}, self._settings()
        kind = features.device, features.dtype, features.shape[3]
        table = self._tables.get(kind)
        if table is None or table[0].shape[0] < stop:
            with torch.inference_mode(False), torch.no_grad():  # training may use it later
                positions = torch.arange(max(64, 2 * stop), device=features.device)
                coordinates = self._coordinates(positions)
                table = rotary_table(features, coordinates, self.base, self.scaling)
                self._tables[kind] = table
        cosine, sine = table
        return cosine.narrow(0, start, stop - start), sine.narrow(0, start, stop - start)

    def _settings(self) -> tuple[Any, ...]:
        """What the tables depend on."""
        return self.base, self.scaling

    def _coordinates(self, positions: Tensor) -> Tensor:
        """Coordinates of positions, (position,) or (position, axis)."""
        return positions

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": {}}


class GridRotary(Rotary):
    """Rotary positions of an image whose positions are counted row by row: half of the pairs turn
    by the row, half by the column (Heo et al. 2024, "Rotary position embedding for vision
    transformer", section 3.2, axial frequencies).

    Scores depend on (dy, dx) alone. A head's width must be a multiple of 4.

    Args:
        columns: of the image; there may be any number of rows.
        base: θ; 100 in the paper, as images have fewer rows than texts have words.
        first: positions before the image that are not turned, as a class token.
    """

    def __init__(self, columns: int, *, base: float = 100.0, first: int = 0) -> None:
        super().__init__(base=base)
        if columns < 1 or first < 0:
            raise RegardError(
                f"GridRotary: columns={columns}, first={first}, expected at least 1 and 0"
            )
        self.columns, self.first = columns, first

    def _settings(self) -> tuple[Any, ...]:
        return (*super()._settings(), self.columns, self.first)

    def _coordinates(self, positions: Tensor) -> Tensor:
        inside = (positions - self.first).clamp_min(0)
        return torch.stack([inside // self.columns, inside % self.columns], dim=1)


class Alibi(Position):
    """ALiBi (Press et al. 2022): scores fall linearly with distance, one slope per head."""

    slopes: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(n_heads), persistent=False)

    def bias(self) -> Bias | None:
        return AlibiBias(self.slopes)


class RelativeBias(Position):
    """A learned number for each head and clipped offset (Shaw et al. 2018; scalar, as in T5)."""

    def __init__(self, n_heads: int, reach: int = 32) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * reach + 1))

    def bias(self) -> Bias | None:
        return RelativeTable(self.table)


class GridBias(Position):
    """A learned number for each head and clipped offset (dy, dx) of an image whose positions are
    counted row by row (Liu et al. 2021, "Swin transformer", equation 4).

    Args:
        n_heads: how many heads.
        columns: of the image; there may be any number of rows.
        reach: the largest |dy| and |dx| with a number of their own.
        first: positions before the image, as a class token: 0 is added to their scores.
    """

    def __init__(
        self, n_heads: int, columns: int, *, reach: tuple[int, int], first: int = 0
    ) -> None:
        super().__init__()
        if columns < 1 or first < 0 or min(reach) < 0:
            raise RegardError(
                f"GridBias: columns={columns}, reach={reach}, first={first}, expected at least 1, "
                "0 and 0"
            )
        self.columns, self.first = columns, first
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * reach[0] + 1, 2 * reach[1] + 1))

    def bias(self) -> Bias | None:
        return GridTable(self.table, self.columns, self.first)


class BucketedBias(Position):
    """A learned number for each head and bucket of offsets (T5; Raffel et al. 2020, section 2.1).

    Near offsets have a bucket each, farther ones share buckets that grow with the distance.

    Args:
        n_heads: how many heads.
        n_buckets: 32 in T5.
        distance: from which on all offsets share one bucket; 128 in T5.
        both_ways: whether keys after the query have buckets of their own, as in T5's encoder; in
            its decoder they have not.
    """

    def __init__(
        self, n_heads: int, n_buckets: int = 32, *, distance: int = 128, both_ways: bool = True
    ) -> None:
        super().__init__()
        per_bucket = 4 if both_ways else 2
        if n_buckets < per_bucket or n_buckets % per_bucket:
            raise ShapeError(
                f"BucketedBias: n_buckets={n_buckets}, expected a multiple of {per_bucket}"
            )
        if distance <= n_buckets // per_bucket:
            raise ShapeError(
                f"BucketedBias: distance={distance}, expected more than the "
                f"{n_buckets // per_bucket} offsets that have a bucket each"
            )
        self.distance, self.both_ways = distance, both_ways
        self.table = nn.Parameter(torch.zeros(n_heads, n_buckets))

    def bias(self) -> Bias | None:
        return BucketedTable(self.table, self.distance, self.both_ways)
