"""Dot-product attention without projections, scaled or plain."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.contract import Attended, Mechanism, State
from regard.kernel.attend import checked_bias, run
from regard.kernel.reduce import Reducer
from regard.masks import Mask
from regard.mechanisms.inputs import Widths, gather
from regard.recipe import Bias, Dot


class DotProduct(Mechanism):
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

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        bias: Tensor | Bias | None = None,
        causal: bool = False,
        state: State | bool | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> Attended:
        """Attend; see `Mechanism.forward`."""
        widths = Widths(key=query.shape[-1])
        given = gather(
            self, query, key, value, mask=mask, causal=causal, state=state, widths=widths
        )
        recipe = Dot(
            given.query[:, None],
            given.key,
            given.value,
            mask=given.mask,
            bias=None if bias is None else checked_bias(bias, given.shape),
            scale=query.shape[-1] ** -0.5 if self.scale is None else self.scale,
        )
        attended = run(
            recipe, dropout=self.dropout if self.training else 0.0, weights=weights, reduce=reduce
        )
        return attended.finished(attended.output[:, 0], given.state)
