"""Recurrent encoders: annotations of every source token, and a summary to start a decoder from."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.contract import Mechanism
from regard.translate.models.cells import Cell
from regard.types import Weights


def backwards(mask: Bool[Tensor, "batch source"]) -> Int[Tensor, "batch source"]:
    """The position read at each position from right to left; padding stays at the end."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    mirrored = mask.sum(1, keepdim=True) - 1 - positions
    return torch.where(mirrored >= 0, mirrored, positions)


def reorder(
    features: Float[Tensor, "batch source width"], order: Int[Tensor, "batch source"]
) -> Float[Tensor, "batch source width"]:
    """Each sentence's positions in its own order."""
    return features.gather(1, order[..., None].expand(-1, -1, features.shape[2]))


def last(
    features: Float[Tensor, "batch source width"], mask: Bool[Tensor, "batch source"]
) -> Float[Tensor, "batch width"]:
    """Features at each sentence's last token; zeros for a sentence without one."""
    index = (mask.sum(1) - 1).clamp_min(0)[:, None, None].expand(-1, 1, features.shape[2])
    return features.gather(1, index)[:, 0] * mask.any(1, keepdim=True)


def concatenated(forwards: Tensor, backwards: Tensor) -> Tensor:
    """Both directions, twice as wide."""
    return torch.cat([forwards, backwards], -1)


class BidirectionalLayer(nn.Module):
    """A layer read in both directions, joined by `join`: `concatenated` or `torch.add`.

    Each direction reads a sentence's tokens first and its padding last, so that no padding reaches
    a token.
    """

    def __init__(
        self,
        forwards: Cell,
        backwards: Cell,
        join: Callable[[Tensor, Tensor], Tensor] = concatenated,
    ) -> None:
        super().__init__()
        self.forwards = forwards
        self.backwards = backwards
        self.join = join
        self.width = join(torch.zeros(forwards.hidden), torch.zeros(backwards.hidden)).shape[0]
        self.summary_width = forwards.hidden + backwards.hidden

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Annotations (batch, source, width), and the last states of both directions."""
        order = backwards(mask)
        there, _ = self.forwards.over(self.forwards.gates(inputs), self.forwards.zeros(inputs))
        mirrored = self.backwards.gates(reorder(inputs, order))
        back, _ = self.backwards.over(mirrored, self.backwards.zeros(inputs))
        summary = concatenated(last(there, mask), last(back, mask))
        return self.join(there, reorder(back, order)), summary


class UnidirectionalLayer(nn.Module):
    """A layer read in one direction: as it stands, or from right to left (`reverse`).

    Sutskever et al. 2014 read the source from right to left, so that its first words are near the
    target's first. Annotations stay at the positions of their tokens.
    """

    def __init__(self, cell: Cell, *, reverse: bool = False) -> None:
        super().__init__()
        self.cell = cell
        self.reverse = reverse
        self.width = self.summary_width = cell.hidden

    def forward(self, inputs: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Annotations (batch, source, width), and the last state."""
        order = backwards(mask)
        inputs = reorder(inputs, order) if self.reverse else inputs
        read, _ = self.cell.over(self.cell.gates(inputs), self.cell.zeros(inputs))
        return reorder(read, order) if self.reverse else read, last(read, mask)


class RecurrentEncoder(nn.Module):
    """Recurrent layers over embedded tokens, optionally after an attention among the tokens.

    The output of `attention` (self-attention of the embedded tokens) is concatenated with the
    embeddings, so the first layer must be built for twice the width.
    """

    def __init__(
        self,
        layers: list[BidirectionalLayer | UnidirectionalLayer],
        *,
        attention: Mechanism | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.attention = attention
        self.dropout = dropout
        self.width = layers[-1].width
        self.summary_widths = [layer.summary_width for layer in layers]

    def forward(
        self,
        embedded: Float[Tensor, "batch source width"],
        mask: Bool[Tensor, "batch source"],
        *,
        weights: bool = False,
    ) -> tuple[Tensor, list[Tensor], dict[str, Weights]]:
        """Annotations (batch, source, width), a summary of each layer, and inner weights."""
        inner_weights: dict[str, Weights] = {}
        if self.attention is not None:
            tokens = masks.pairs(mask[:, None, :, None] & mask[:, None, None, :])
            attended = self.attention(embedded, mask=tokens, weights=weights)
            embedded = torch.cat([embedded, attended.output], -1)
            if attended.weights is not None:
                inner_weights["encoder"] = attended.weights
        summaries = []
        for i, layer in enumerate(self.layers):
            inputs = F.dropout(embedded, self.dropout, self.training) if i else embedded
            embedded, summary = layer(inputs, mask)
            summaries.append(summary)
        return embedded, summaries, inner_weights
