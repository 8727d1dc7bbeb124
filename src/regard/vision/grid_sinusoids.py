"""Sinusoidal positions of two axes, added to an image."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import DtypeError, ShapeError
from regard.kernel.position_encodings import sinusoids


class GridSinusoids(nn.Module):
    """x + [sin, cos of the row; sin, cos of the column], each a quarter of the channels.

    Vaswani et al. 2017, section 3.5, for two axes, as vision transformers with fixed positions have
    it (Chen et al. 2021, "MoCo v3", section 4). For features beside the channels in place of a sum
    see `regard.blocks.sets.FourierFeatures`.

    Args:
        channels: of the image, a multiple of 4.
        base: the longest wavelength, divided by 2π.

    >>> import torch
    >>> from regard.vision import GridSinusoids
    >>> GridSinusoids(8)(torch.zeros(1, 8, 2, 3))[0, :, 0, 0].tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    """

    def __init__(self, channels: int, *, base: float = 10000.0) -> None:
        super().__init__()
        if channels < 4 or channels % 4:
            raise ShapeError(f"GridSinusoids: {channels} channels, expected a multiple of 4")
        self.channels, self.base = channels, base

    def forward(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel height width"]:
        """The image with its positions added."""
        if image.dim() != 4 or image.shape[1] != self.channels:
            raise ShapeError(
                f"GridSinusoids: image is {tuple(image.shape)}, expected (batch, {self.channels}, "
                "height, width)"
            )
        if not image.is_floating_point():
            raise DtypeError(f"GridSinusoids: image is {image.dtype}, expected floating point")
        rows, columns = (
            sinusoids(torch.arange(size, device=image.device), self.channels // 2, self.base)
            for size in image.shape[2:]
        )  # (position, channels / 2)
        size = (-1, *image.shape[2:])
        halves = (rows.mT[:, :, None].expand(size), columns.mT[:, None].expand(size))
        return image + torch.cat(halves).to(image.dtype)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.channels} channels"
