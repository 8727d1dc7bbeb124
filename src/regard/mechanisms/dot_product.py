"""Dot-product attention without projections, scaled or plain."""

from __future__ import annotations

from torch import Tensor

from regard.bias import Bias
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths
from regard.recipe import Dot


class DotProduct(FromRecipe):
    """A = softmax(scale · Q Kᵀ), output = A V, one head, nothing learned.

    Vaswani et al. 2017, "Attention is all you need", eq. 1.

    | here    | paper | meaning                                         |
    |---------|-------|-------------------------------------------------|
    | `query` | Q     | (batch, query, width)                           |
    | `key`   | K     | (batch, key, width)                             |
    | `value` | V     | (batch, key, value width)                       |
    | `scale` | 1/√dₖ | None: one over the root of the width; 1.0 plain |

    With unit-normal inputs q·k has variance dₖ, and 1 after scaling.

    >>> import torch
    >>> from regard.mechanisms import DotProduct
    >>> attended = DotProduct()(torch.randn(1, 3, 4), weights=True)
    >>> attended.weights.sum(-1).round(decimals=4)
    tensor([[[1., 1., 1.]]])
    """

    def __init__(self, *, scale: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = dropout

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        return key[:, None], value[:, None]  # (batch, 1, key, width)

    def widths(self, query_width: int) -> Widths:
        return Widths(key=query_width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Dot:
        query = inputs.query[:, None]
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        return Dot(query, inputs.key, inputs.value, mask=inputs.mask, bias=bias, scale=scale)
