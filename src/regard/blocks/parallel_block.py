"""The parallel block: self-attention and feed-forward of the same input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.inputs import default_causal, prepare_x, refuse_context, states_by_name
from regard.blocks.sublayers import check_modules, warn_of_identity
from regard.contract import BlockOutput, Mechanism
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class ParallelBlock(AttentionBlock):
    """skip · x + attention_gain · attention(norm(x)) + feed_forward_gain · feed_forward(norm(x)).

    With gains of 1 it is the block of Wang & Komatsuzaki 2021 (GPT-J) and Chowdhery et al. 2022
    (PaLM, section 2). `skip` is constant; gains are learned.

    Args:
        width: features a position.
        self_attention: any `Mechanism`.
        feed_forward: a module on features.
        norm: a module on features; `nn.LayerNorm(width)` when None.
        gains: initial gains of attention and feed-forward.
        skip: gain of x; 0 is a block without a skip connection.

    >>> import torch
    >>> from regard.blocks import FeedForward, ParallelBlock
    >>> from regard.mechanisms import MultiHead
    >>> block = ParallelBlock(16, MultiHead(16, 4), FeedForward(16))
    >>> blocked = block(torch.randn(2, 5, 16), weights=True)
    >>> blocked.output.shape, blocked.attentions["self"].weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        width: int,
        self_attention: Mechanism,
        feed_forward: nn.Module,
        *,
        norm: nn.Module | None = None,
        gains: tuple[float, float] = (1.0, 1.0),
        skip: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(self_attention, Mechanism):
            raise RegardError(
                f"ParallelBlock: self_attention is {type(self_attention).__name__}, expected a "
                "regard.Mechanism, as MultiHead"
            )
        norm = nn.LayerNorm(width) if norm is None else norm
        check_modules(
            self, width, self_attention=self_attention, feed_forward=feed_forward, norm=norm
        )
        warn_of_identity(self, self_attention)
        self.width, self.skip = width, skip
        self.norm, self.self_attention, self.feed_forward = norm, self_attention, feed_forward
        self.attention_gain = nn.Parameter(torch.tensor(gains[0]))
        self.feed_forward_gain = nn.Parameter(torch.tensor(gains[1]))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        causal: bool | None = None,
        state: Any = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Attention `self`; see `AttentionBlock.forward`. A context is refused."""
        refuse_context(self, context, context_mask)
        causal = default_causal(self, causal, state)
        past = states_by_name(self, state, "self")["self"]
        attention = self.self_attention
        x = prepare_x(self, attention, x, self.width, mask=mask, causal=causal, past=past)
        normed = self.norm(x)
        attended = self.self_attention(
            normed, mask=mask, causal=causal, state=past, weights=weights, reduce=reduce
        )
        output = self.attention_gain * attended.output
        output = output + self.feed_forward_gain * self.feed_forward(normed)
        if self.skip:
            output = output + self.skip * x
        after = None if past is None else {"self": attended.state}
        return BlockOutput(output, {"self": attended}, after)
