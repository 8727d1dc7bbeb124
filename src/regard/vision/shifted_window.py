"""Shifted-window attention: positions attend inside windows, which lie elsewhere in every second
layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.kernel.positions import GridTable
from regard.recipe import Recipe
from regard.vision.contract import ImageMechanism
from regard.vision.groups import attend_in_groups, windows


class ShiftedWindow(ImageMechanism):
    """A = softmax(Q Kᵀ / √d + B) inside each window, output = W_O A V.

    Liu et al. 2021, "Swin transformer", sections 3.2 and equation 4.

    | here         | paper    | meaning                                                            |
    |--------------|----------|--------------------------------------------------------------------|
    | `window`     | M        | rows and columns of a window; 7 in the paper                       |
    | `shift`      | ⌊M/2⌋    | how far windows are moved down and right; 0 in every first layer   |
    | `table`      | B̂        | (head, 2M − 1, 2M − 1), by key minus query; B is read from it      |

    Shifted windows wrap around the image; there each part of a window attends to itself alone, as
    the paper's mask has it. Images whose sides are no multiples of the window are filled up at the
    bottom and right, and what is outside gets no weight; the authors' code lets it be attended to.
    An axis that one window spans is not shifted. Weights are over the whole image, at their true
    places: `recipe.offsets()` has them over (dy, dx). The authors index their table by query minus
    key: flip both axes of theirs.

    Linear maps and the table start as in the authors' code: normal with a deviation of 0.02, cut
    off at ±2, biases 0.

    Args:
        channels: of the image, in and out.
        n_heads: a divisor of the channels.
        window: rows and columns of a window.
        shift: from 0 to window − 1.

    >>> import torch
    >>> from regard.vision import ShiftedWindow
    >>> attn = ShiftedWindow(8, 2, window=3, shift=1)
    >>> attn(torch.randn(1, 8, 7, 5), weights=True).weights.shape
    torch.Size([1, 2, 35, 35])
    """

    def __init__(self, channels: int, n_heads: int, *, window: int = 7, shift: int = 0) -> None:
        super().__init__()
        if n_heads < 1 or channels % n_heads:
            raise ShapeError(
                f"ShiftedWindow: n_heads={n_heads}, expected a divisor of {channels} channels"
            )
        if window < 1 or not 0 <= shift < window:
            raise RegardError(
                f"ShiftedWindow: window={window}, shift={shift}, expected a window of at least 1 "
                "and a shift from 0 to window − 1"
            )
        self.channels, self.n_heads, self.window, self.shift = channels, n_heads, window, shift
        self.to_query, self.to_key, self.to_value, self.to_output = (
            nn.Linear(channels, channels) for _ in range(4)
        )
        self.table = nn.Parameter(torch.empty(n_heads, 2 * window - 1, 2 * window - 1))
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        nn.init.trunc_normal_(self.table, std=0.02)

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        height, width = image.shape[2:]
        features = image.flatten(2).mT  # (batch, position, channel)
        query, key, value = (
            project(features).unflatten(2, (self.n_heads, -1))
            for project in (self.to_query, self.to_key, self.to_value)
        )
        groups = windows(height, width, self.window, self.shift, image.device)
        bias, scale = GridTable(self.table, self.window), query.shape[3] ** -0.5
        mixed, recipe = attend_in_groups(query, key, value, groups, scale=scale, bias=bias)
        output = self.to_output(mixed.flatten(2))
        return output.mT.unflatten(2, (height, width)), recipe

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, window {self.window}, shift {self.shift}"
