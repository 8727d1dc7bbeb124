"""Axial attention: every position attends to its row, or to its column."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from regard.errors import RegardError, ShapeError
from regard.vision.groups import GroupAttention, Groups, Position, lines


class Axial(GroupAttention):
    """A_ij = softmax over the positions of one axis of q_iᵀ k_j / √d, output = W_O A V.

    Ho et al. 2019, "Axial attention in multidimensional transformers", section 3. A row
    module followed by a column module (the axial layer of later networks) lets every position reach
    every other in two steps, for height · width · (height + width) scores instead of
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
        if position is not None and not isinstance(position, Position):
            raise RegardError(f"Axial: position={position!r}, expected a part, as Rotary()")
        super().__init__(channels, n_heads, initialise=nn.init.xavier_uniform_, position=position)
        if axis not in ("row", "column"):
            raise RegardError(f'Axial: axis={axis!r}, expected "row" or "column"')
        bias = None if position is None else position.bias()
        if bias is not None and bias.heads not in (1, n_heads):
            raise ShapeError(
                f"Axial: position: {type(position).__name__} has {bias.heads} heads, expected "
                f"{n_heads}"
            )
        self.axis = axis

    def groups(self, height: int, width: int, device: torch.device) -> Groups:
        return lines(height, width, self.axis, device)

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"{self.n_heads} heads, along each {self.axis}"
