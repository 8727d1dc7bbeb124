"""What gates have in common: factors between 0 and 1, and an image times them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.recipe import Given, Recipe
from regard.types import Kind
from regard.vision.contract import ImageMechanism


class Gate(ImageMechanism):
    """An image times factors between 0 and 1 that are made from it; a subclass makes them.

    The recipe is a `Given` of kind `gate`: (batch, 1, 1, channel) for a gate of channels,
    (batch, 1, 1, height · width) for one of positions, (batch, channel, 1, height · width) for one
    of every channel at every position. The last two have the image's grid.
    """

    kind: Kind = "gate"
    of_channels: bool = False  #: each channel has one factor, whatever the position

    @abstractmethod
    def factors(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channels rows columns"]:
        """Factors of a checked image: (batch, channel, 1, 1), (batch, 1, height, width) or
        (batch, channel, height, width)."""

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channel height width"], Callable[[], Recipe]]:
        factors = self.factors(image)
        self._check_factors(factors, image)

        def recipe() -> Recipe:
            if self.of_channels:
                return Given(factors.flatten(1)[:, None, None], None, "gate")
            grid = (factors.shape[2], factors.shape[3])
            return Given(factors.flatten(2)[:, :, None], None, "gate", grid)

        return image * factors, recipe

    def _check_factors(self, factors: Tensor, image: Tensor) -> None:
        """Raise where a part, as a pooling, left an axis that does not belong there."""
        batch, channels, height, width = image.shape
        maps = [(batch, 1, height, width), (batch, channels, height, width)]
        expected = [(batch, channels, 1, 1)] if self.of_channels else maps
        if tuple(factors.shape) not in expected:
            raise ShapeError(
                f"{type(self).__name__}: factors are {tuple(factors.shape)}, expected "
                f"{' or '.join(str(size) for size in expected)}"
            )


def check_parts(name: str, **parts: object) -> None:
    """Raise where a part that was passed is no module: a class, a function, a string."""
    for argument, part in parts.items():
        if part is not None and not isinstance(part, nn.Module):
            raise RegardError(f"{name}: {argument}={part!r}, expected an nn.Module, as nn.ReLU()")


def hidden_channels(name: str, channels: int, reduction: int | float, hidden: int | None) -> int:
    """Channels between the two layers of a gate: `hidden`, or channels / reduction; never 0."""
    if channels < 1:
        raise RegardError(f"{name}: channels={channels}, expected at least 1")
    if hidden is None:
        if not reduction > 0:
            raise RegardError(f"{name}: reduction={reduction}, expected a number above 0")
        hidden = int(channels / reduction)
        if hidden < 1:
            raise RegardError(
                f"{name}: channels={channels} and reduction={reduction} leave {hidden} hidden "
                f"channels, expected at least 1: reduction up to {channels}, or hidden=1"
            )
    elif hidden < 1:
        raise RegardError(f"{name}: hidden={hidden}, expected at least 1")
    return hidden


class Bottleneck(nn.Module):
    """Two 1 × 1 convolutions with an activation between: channels to fewer and back.

    Applied to pooled channels, (batch, channel, 1, 1), they are two linear layers.
    """

    def __init__(self, channels: int, hidden: int, *, bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(channels, hidden, 1, bias=bias)
        self.activation = activation
        self.widen = nn.Conv2d(hidden, channels, 1, bias=bias)

    def forward(
        self, pooled: Float[Tensor, "batch channel 1 1"]
    ) -> Float[Tensor, "batch channel 1 1"]:
        hidden: Tensor = self.activation(self.narrow(pooled))
        scores: Tensor = self.widen(hidden)
        return scores
