"""Poolings of channel gates: all positions of a channel to one number."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class MeanPooling(nn.Module):
    """The mean over positions."""

    def forward(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel 1 1"]:
        return image.mean((2, 3), keepdim=True)


class MaxPooling(nn.Module):
    """The largest value over positions."""

    def forward(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel 1 1"]:
        return image.amax((2, 3), keepdim=True)
