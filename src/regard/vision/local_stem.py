"""The stem of a stand-alone attention network: values that depend on their position in a window."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.recipe import Recipe
from regard.vision.contract import ImageMechanism
from regard.vision.groups import attend_in_groups, windows


class LocalStem(ImageMechanism):
    """max pooling of Σ_ab softmax_ab(q_ijᵀ k_ab) ṽ_ab, ṽ_ab = (Σ_m p(a, b, m) W_V^m) x_ab.

    Ramachandran et al. 2019, "Stand-alone self-attention in vision models", section 3.2 and
    appendix A: p(a, b, m) = softmax_m((row(a) + column(b))ᵀ ν^m).

    | here         | paper          | meaning                                                     |
    |--------------|----------------|-------------------------------------------------------------|
    | `window`     |                | of the pooling, with which the attention is aligned         |
    | `n_mixtures` | m              | value matrices that are mixed                               |
    | `row`        | emb_row(a)     | (row of the window, head width); `column` likewise          |
    | `mixture`    | ν^m            | (mixture, head width)                                       |

    First layers see little in the content of one pixel. Values that depend on the position in the
    window can learn edges, as a convolution does. The mixture is shared by the heads. Windows at
    the lower and right edges are cut off. Weights are those before the pooling: queries are the
    pixels. Embeddings start normal; the paper does not say. There is no batch norm before the
    pooling, which the paper's network has.

    Args:
        channels: of the image; 3 for colours.
        out_channels: a multiple of the heads.
        n_heads: 4 in the paper.
        window: 4 in the paper, which halves the sides twice.
        n_mixtures: 4 in the paper.

    >>> import torch
    >>> from regard.vision import LocalStem
    >>> LocalStem(3, 64)(torch.randn(1, 3, 32, 32)).output.shape
    torch.Size([1, 64, 8, 8])
    """

    def __init__(
        self,
        channels: int,
        out_channels: int,
        n_heads: int = 4,
        *,
        window: int = 4,
        n_mixtures: int = 4,
    ) -> None:
        super().__init__()
        if n_heads < 1 or out_channels % n_heads:
            raise ShapeError(
                f"LocalStem: n_heads={n_heads}, expected a divisor of {out_channels} output "
                "channels"
            )
        if window < 1 or n_mixtures < 1:
            raise ShapeError(
                f"LocalStem: window={window}, n_mixtures={n_mixtures}, expected at least 1 each"
            )
        self.channels, self.n_heads, self.window = channels, n_heads, window
        self.to_query, self.to_key = (
            nn.Linear(channels, out_channels, bias=False) for _ in range(2)
        )
        self.to_value = nn.Linear(channels, n_mixtures * out_channels, bias=False)
        width = out_channels // n_heads
        self.row = nn.Parameter(torch.randn(window, width))
        self.column = nn.Parameter(torch.randn(window, width))
        self.mixture = nn.Parameter(torch.randn(n_mixtures, width) * width**-0.5)

    def shares(self) -> Float[Tensor, "row column mixture"]:
        """p(a, b, m): the share of each value matrix at each position of a window."""
        embedding = self.row[:, None] + self.column  # (row, column, width)
        return F.linear(embedding, self.mixture).softmax(-1)

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        height, width = image.shape[2:]
        features = image.flatten(2).mT  # (batch, position, channel)
        query, key = (
            project(features).unflatten(2, (self.n_heads, -1))
            for project in (self.to_query, self.to_key)
        )
        rows, columns = (
            torch.arange(size, device=image.device) % self.window for size in (height, width)
        )
        shares = self.shares()[rows[:, None], columns].flatten(0, 1)  # (position, mixture)
        values = self.to_value(features).unflatten(2, (shares.shape[1], -1))
        value = (values * shares[:, :, None]).sum(2).unflatten(2, (self.n_heads, -1))
        groups = windows(height, width, self.window, 0, image.device)
        mixed, recipe = attend_in_groups(query, key, value.to(query.dtype), groups, scale=1.0)
        whole = mixed.flatten(2).mT.unflatten(2, (height, width))
        return F.max_pool2d(whole, self.window, ceil_mode=True), recipe

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, window {self.window}, {len(self.mixture)} mixtures"
