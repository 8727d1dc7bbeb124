"""The feed-forward network: two linear layers at every position."""

from __future__ import annotations

from torch import Tensor, nn

from regard.types import Features


class FeedForward(nn.Module):
    """W₂ dropout(activation(W₁ x + b₁)) + b₂, at each position separately.

    Vaswani et al. 2017, "Attention is all you need", section 3.3.

    Args:
        width: features of input and output.
        inner_width: features of the hidden layer; 4 · `width` when None.
        activation: a module between the layers; `nn.ReLU()` when None.
        dropout: after the activation, in training.
    """

    def __init__(
        self,
        width: int,
        inner_width: int | None = None,
        *,
        activation: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner_width = 4 * width if inner_width is None else inner_width
        self.widen = nn.Linear(width, inner_width)
        self.activation = nn.ReLU() if activation is None else activation
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(inner_width, width)

    def forward(self, x: Features) -> Features:
        """(batch, position, width) in and out."""
        output: Tensor = self.narrow(self.dropout(self.activation(self.widen(x))))
        return output
