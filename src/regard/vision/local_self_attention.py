"""Stand-alone self-attention: every position attends to the k × k positions around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ShapeError
from regard.kernel.image_windows import edges_of, local_attention
from regard.recipe import Recipe
from regard.softmax import product
from regard.vision.contract import ImageMechanism


class LocalSelfAttention(ImageMechanism):
    """y_ij = Σ_{ab ∈ N_k(i, j)} softmax_ab(q_ijᵀ k_ab + q_ijᵀ r_{a−i, b−j}) v_ab.

    Ramachandran et al. 2019, "Stand-alone self-attention in vision models", section 3.

    | here         | paper          | meaning                                                     |
    |--------------|----------------|-------------------------------------------------------------|
    | `size`       | k              | rows and columns of the neighbourhood                       |
    | `n_heads`    | N              | attentions side by side                                     |
    | `to_query`   | W_Q            | 1 × 1, without a bias; `to_key` and `to_value` likewise     |
    | `row`        | r_{a−i}        | (head, dy, half of the head's width), for the first half    |
    | `column`     | r_{b−j}        | (head, dx, half of the head's width), for the second half   |

    Scores are summed over the channels of a head and are not divided by √d, as in the paper. What
    is outside the image gets no weight; the paper does not say, and ports that pad with zeros give
    weight to nothing. The offsets have embeddings of their own in each head, which start normal
    with a deviation of 1/√(head width). There is no output projection.

    The recipe is a list of edges: `attended.recipe.offsets()` has the weights over (dy, dx). The
    output takes one pass over the image for each offset, and no more memory than a weight for
    each position and offset.

    Args:
        channels: of the image.
        n_heads: 8 in the paper.
        size: an odd number; 7 in the paper.
        out_channels: those of the image when None.
        groups: of each projection. With 1 all heads read all channels, which gives the 18.0 M
            parameters that the paper states for ResNet-50; with `n_heads` each head reads its own
            channels, which is how its section 3 puts it.
        scale: what the query is multiplied by.

    >>> import torch
    >>> from regard.vision import LocalSelfAttention
    >>> attn = LocalSelfAttention(16, n_heads=2, size=3)
    >>> attended = attn(torch.randn(1, 16, 5, 6), weights=True)
    >>> attended.output.shape, attended.weights.shape
    (torch.Size([1, 16, 5, 6]), torch.Size([1, 2, 30, 30]))
    >>> attended.recipe.offsets().weights.shape
    torch.Size([1, 2, 5, 6, 3, 3])
    """

    def __init__(
        self,
        channels: int,
        n_heads: int = 8,
        *,
        size: int = 7,
        out_channels: int | None = None,
        groups: int = 1,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        if n_heads < 1 or out_channels < 1 or out_channels % (2 * n_heads):
            raise ShapeError(
                f"LocalSelfAttention: {out_channels} output channels over n_heads={n_heads}, "
                "expected a multiple of 2 · n_heads: half of a head's width is for rows, half for "
                "columns"
            )
        if size < 1 or size % 2 == 0:
            raise ShapeError(f"LocalSelfAttention: size={size}, expected an odd number")
        if groups < 1 or channels % groups or out_channels % groups:
            raise ShapeError(
                f"LocalSelfAttention: groups={groups}, expected a divisor of {channels} and "
                f"{out_channels} channels"
            )
        self.channels, self.n_heads, self.size, self.scale = channels, n_heads, size, scale
        self.to_query, self.to_key, self.to_value = (
            nn.Conv2d(channels, out_channels, 1, groups=groups, bias=False) for _ in range(3)
        )
        width = out_channels // n_heads
        self.row = nn.Parameter(torch.empty(n_heads, size, width // 2))
        self.column = nn.Parameter(torch.empty(n_heads, size, width // 2))
        for embedding in (self.row, self.column):
            nn.init.normal_(embedding, std=width**-0.5)

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        query, key, value = (
            project(image).unflatten(1, (self.n_heads, -1))
            for project in (self.to_query, self.to_key, self.to_value)
        )  # (batch, head, width, row, column)
        query = query * self.scale
        first, second = query.flatten(3).chunk(2, dim=2)  # (batch, head, width/2, position)
        rows, columns = (
            product(embedding.to(half.dtype), half).unflatten(3, query.shape[3:])
            for embedding, half in ((self.row, first), (self.column, second))
        )  # (batch, head, size, row, column)
        output, weights = local_attention(query, key, value, rows, columns)

        def recipe() -> Recipe:
            return edges_of(weights, (self.size, self.size), value.flatten(3).mT)

        return output.flatten(1, 2), recipe

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, {self.size} × {self.size}"
