"""Axial attention: every position attends to its row, or to its column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import RegardError, ShapeError
from regard.recipe import Recipe
from regard.vision.contract import ImageMechanism
from regard.vision.groups import Position, attend_in_groups, lines


class Axial(ImageMechanism):
    """A_ij = softmax over the positions of one axis of q_iᵀ k_j / √d, output = W_O A V.

    Ho et al. 2019, "Axial attention in multidimensional transformers", section 3; the pair of both
    axes is the criss-cross or axial layer of later networks:
    a row module and a column module on its output, with what stands around each, let every position
    reach every other in two steps, for height · width · (height + width) scores in place of
    (height · width)².

    | here         | paper                    | meaning                                           |
    |--------------|--------------------------|---------------------------------------------------|
    | `axis`       | Attention_k, k the axis  | "row": over the columns of a row; "column"        |
    | `position`   |                          | a part, as in `MultiHead`: along the axis         |

    Weights are over the whole image, 0 but for one row or column: `recipe.offsets()` has them over
    (dy, dx). Linear maps start Xavier-uniform, as in `MultiHead`; the paper does not say.

    Args:
        channels: of the image, in and out.
        n_heads: a divisor of the channels.
        axis: the axis along which a position looks.
        position: where things are along the axis, as `regard.mechanisms.Rotary()` or
            `RelativeBias(n_heads)`; without one, order does not matter.

    >>> import torch
    >>> from regard.vision import Axial
    >>> rows, columns = Axial(8, 2, axis="row"), Axial(8, 2, axis="column")
    >>> image = torch.randn(1, 8, 4, 5)
    >>> columns(rows(image).output, weights=True).weights.shape
    torch.Size([1, 2, 20, 20])
    """

    def __init__(
        self,
        channels: int,
        n_heads: int,
        *,
        axis: Literal["row", "column"],
        position: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or channels % n_heads:
            raise ShapeError(f"Axial: n_heads={n_heads}, expected a divisor of {channels} channels")
        if axis not in ("row", "column"):
            raise RegardError(f'Axial: axis={axis!r}, expected "row" or "column"')
        if position is not None and not isinstance(position, Position):
            raise RegardError(f"Axial: position={position!r}, expected a part, as Rotary()")
        bias = None if position is None else position.bias()
        if bias is not None and bias.heads not in (1, n_heads):
            raise ShapeError(
                f"Axial: position: {type(position).__name__} has {bias.heads} heads, expected "
                f"{n_heads}"
            )
        self.channels, self.n_heads, self.axis = channels, n_heads, axis
        self.position = position
        self.to_query, self.to_key, self.to_value, self.to_output = (
            nn.Linear(channels, channels) for _ in range(4)
        )
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        height, width = image.shape[2:]
        features = image.flatten(2).mT  # (batch, position, channel)
        query, key, value = (
            project(features).unflatten(2, (self.n_heads, -1))
            for project in (self.to_query, self.to_key, self.to_value)
        )
        groups = lines(height, width, self.axis, image.device)
        part: Position | None = self.position
        scale = query.shape[3] ** -0.5
        mixed, recipe = attend_in_groups(query, key, value, groups, scale=scale, position=part)
        output = self.to_output(mixed.flatten(2))
        return output.mT.unflatten(2, (height, width)), recipe

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, along each {self.axis}"
