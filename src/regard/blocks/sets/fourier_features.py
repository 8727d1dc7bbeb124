"""Fourier features of positions, appended to the features of a set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import DtypeError, ShapeError
from regard.types import Features


class FourierFeatures(nn.Module):
    """[x; p; sin(π f_k p); cos(π f_k p)] with p in [−1, 1] and f_k from 1 to resolution/2, linear.

    Jaegle et al. 2021, "Perceiver", section 3.2. Positions are concatenated and not added, so that
    channels grow to channels + axes · (2K + 1).

    | here         | paper | meaning                                                           |
    |--------------|-------|-------------------------------------------------------------------|
    | `resolution` | μ     | samples along each axis; μ/2 is the highest frequency (Nyquist)   |
    | `n_bands`    | K     | frequencies of each axis                                          |
    | `positions`  | x_d   | coordinates along each axis, from −1 to 1                         |

    The order is: x, p of every axis, sines of every axis (all frequencies of the first axis first),
    cosines likewise. Angles are computed in float32 or float64 whatever the dtype: bfloat16 is too
    coarse for the phases of high frequencies.

    Args:
        resolution: samples along each axis, such as (224, 224) for an image.
        n_bands: frequencies of each axis.

    >>> import torch
    >>> from regard.blocks.sets import FourierFeatures
    >>> features = FourierFeatures((224, 224), n_bands=64)
    >>> features(torch.randn(2, 8, 8, 3)).shape  # a smaller image: positions still span −1 to 1
    torch.Size([2, 64, 261])
    >>> features(torch.randn(2, 5, 3), torch.rand(2, 5, 2)).shape  # explicit positions
    torch.Size([2, 5, 261])
    """

    def __init__(self, resolution: Sequence[int], n_bands: int) -> None:
        super().__init__()
        if not resolution or min(resolution) < 1 or n_bands < 1:
            raise ShapeError(
                f"FourierFeatures: resolution={resolution}, n_bands={n_bands}, expected at least "
                "one axis, and at least 1 for each number"
            )
        self.resolution = tuple(resolution)
        self.n_bands = n_bands

    @property
    def width(self) -> int:
        """Features appended to x: axes · (2K + 1)."""
        return len(self.resolution) * (2 * self.n_bands + 1)

    def forward(
        self,
        x: Float[Tensor, "batch *axes channel"],
        positions: Float[Tensor, "#batch position axis"] | None = None,
    ) -> Features:
        """(batch, position, channels + axes · (2K + 1)).

        Args:
            x: (batch, *axes, channels), a grid that spans −1 to 1 along each axis, whatever its
                size; or (batch, position, channels) with `positions`.
            positions: (batch or 1, position, axes).
        """
        axes = len(self.resolution)
        if not x.is_floating_point():
            raise DtypeError(f"FourierFeatures: x is {x.dtype}, expected floating point")
        if positions is None:
            if x.dim() != axes + 2:
                raise ShapeError(
                    f"FourierFeatures: x has {x.dim()} axes {tuple(x.shape)}, expected {axes + 2}: "
                    f"(batch, {axes} axes of the grid, channels); or pass positions="
                )
            positions = self._grid(x)
            x = x.flatten(1, -2)
        fits = x.dim() == 3 and positions.dim() == 3 and positions.shape[0] in (1, x.shape[0])
        if not fits or positions.shape[1:] != (x.shape[1], axes):
            raise ShapeError(
                f"FourierFeatures: x is {tuple(x.shape)} and positions {tuple(positions.shape)}, "
                f"expected (batch, position, channels) and (batch or 1, position, {axes})"
            )
        encoded = self.encode(positions).to(x.dtype)
        return torch.cat([x, encoded.expand(x.shape[0], -1, -1)], -1)

    def encode(self, positions: Float[Tensor, "*any axis"]) -> Float[Tensor, "*any feature"]:
        """Features (..., axes · (2K + 1)) of positions (..., axes) in [−1, 1]."""
        dtype = torch.float64 if positions.dtype == torch.float64 else torch.float32
        positions = positions.to(dtype)
        bands = torch.stack(
            [
                torch.linspace(1, size / 2, self.n_bands, dtype=dtype, device=positions.device)
                for size in self.resolution
            ]
        )  # (axis, band)
        angles = (math.pi * positions[..., None] * bands).flatten(-2)  # (..., axis · band)
        return torch.cat([positions, angles.sin(), angles.cos()], -1)

    def _grid(self, x: Tensor) -> Tensor:
        """Positions (1, position, axis) of a grid (batch, *axes, channels)."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        steps = [torch.linspace(-1, 1, n, dtype=dtype, device=x.device) for n in x.shape[1:-1]]
        return torch.stack(torch.meshgrid(*steps, indexing="ij"), -1).flatten(0, -2)[None]

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"resolution {self.resolution}, {self.n_bands} bands"
