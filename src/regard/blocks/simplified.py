"""Simplified blocks: shaped attention instead of skips, values and projections."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from regard.blocks.encoder_block import EncoderBlock
from regard.blocks.feed_forward import FeedForward
from regard.blocks.parallel_block import ParallelBlock
from regard.blocks.sublayers import PreNorm, ScaledResidual, Skipless
from regard.mechanisms import Shaped


def sas_block(
    width: int,
    n_heads: int,
    *,
    values: bool = False,
    inner_width: int | None = None,
    gain: float = 0.1,
    norm: Callable[[int], nn.Module] = nn.RMSNorm,
    dropout: float = 0.0,
) -> EncoderBlock:
    """A block with a simplified attention sub-block (SAS).

    y = attention(norm(x)), output = skip · y + gain · feed_forward(norm(y)), where the attention is
    `Shaped`: it starts as the identity, so it needs no skip connection.

    He & Hofmann 2023, "Simplifying transformer blocks", figure 1 and section 4. Without values and
    output projection a block has 10 · width² weights, a standard one 12 · width².

    | here          | paper  |
    |---------------|--------|
    | `gain`        | β_FF   |
    | skip          | α_FF   |

    Args:
        width: features a position.
        n_heads: number of heads; divides `width`.
        values: learn the values' projection, as the paper does in the first block of a stack.
        inner_width: of the feed-forward network; 4 · `width` when None.
        gain: initial gain of the feed-forward network; about 1/√depth.
        norm: builds a norm from a width; `nn.Identity` leaves it out.
        dropout: of the softmax and in the feed-forward network, in training.

    >>> import torch
    >>> from regard.blocks import Stack, sas_block
    >>> stack = Stack([sas_block(16, 4, values=layer == 0) for layer in range(3)])
    >>> stack(torch.randn(2, 5, 16), causal=True).output.shape
    torch.Size([2, 5, 16])
    """
    attention = Shaped(width, n_heads, values=values, dropout=dropout)
    feed_forward = FeedForward(width, inner_width, dropout=dropout)
    return EncoderBlock(
        PreNorm(width, attention, norm=norm(width), join=Skipless()),
        PreNorm(width, feed_forward, norm=norm(width), join=ScaledResidual(gain=gain)),
    )


def sas_p_block(
    width: int,
    n_heads: int,
    *,
    values: bool = False,
    inner_width: int | None = None,
    gain: float = 0.1,
    norm: Callable[[int], nn.Module] = nn.RMSNorm,
    dropout: float = 0.0,
) -> ParallelBlock:
    """A block with a simplified attention sub-block, parallel and without any skip (SAS-P).

    output = attention(norm(x)) + gain · feed_forward(norm(x)); arguments as those of `sas_block`.

    He & Hofmann 2023, "Simplifying transformer blocks", figure 1 and section 4.3.

    >>> import torch
    >>> from regard.blocks import sas_p_block
    >>> sas_p_block(16, 4)(torch.randn(2, 5, 16), causal=True).output.shape
    torch.Size([2, 5, 16])
    """
    return ParallelBlock(
        width,
        Shaped(width, n_heads, values=values, dropout=dropout),
        FeedForward(width, inner_width, dropout=dropout),
        norm=norm(width),
        gains=(1.0, gain),
        skip=0.0,
    )
