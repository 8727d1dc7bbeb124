"""Shifted-window attention: positions attend inside windows, shifted in every second layer."""

from __future__ import annotations

import functools

import torch
from torch import nn

from regard.bias import Bias
from regard.errors import RegardError
from regard.kernel.position_encodings import GridTable
from regard.vision.groups import GroupAttention, Groups, windows


class ShiftedWindow(GroupAttention):
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
    positions: `recipe.offsets()` has them over (dy, dx). The authors index their table by query
    minus key: flip both axes of theirs.

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
        initialise = functools.partial(nn.init.trunc_normal_, std=0.02)
        super().__init__(channels, n_heads, initialise=initialise)
        if window < 1 or not 0 <= shift < window:
            raise RegardError(
                f"ShiftedWindow: window={window}, shift={shift}, expected a window of at least 1 "
                "and a shift from 0 to window − 1"
            )
        self.window, self.shift = window, shift
        self.table = nn.Parameter(torch.empty(n_heads, 2 * window - 1, 2 * window - 1))
        initialise(self.table)

    def groups(self, height: int, width: int, device: torch.device) -> Groups:
        return windows(height, width, self.window, self.shift, device)

    def bias(self) -> Bias:
        return GridTable(self.table, self.window)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, window {self.window}, shift {self.shift}"
