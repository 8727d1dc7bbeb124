"""The encoder block: self-attention, then feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.from_torch import feed_forward_of, sublayer_of
from regard.blocks.inputs import default_causal, prepare_x, refuse_context, states_by_name
from regard.blocks.sublayers import Sublayer, check_sublayers, warn_of_identity
from regard.contract import BlockOutput
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class EncoderBlock(AttentionBlock):
    """Self-attention, then a feed-forward network at each position.

    Vaswani et al. 2017, "Attention is all you need", section 3.1. With `causal=True`, and with a
    state unless `causal=False`, it is the block of a decoder-only model.

    Args:
        self_attention: a sub-layer around any `Mechanism`.
        feed_forward: a sub-layer around a module on features.

    >>> import torch
    >>> from regard.blocks import EncoderBlock, FeedForward, PreNorm
    >>> from regard.mechanisms import MultiHead
    >>> block = EncoderBlock(PreNorm(16, MultiHead(16, 4)), PreNorm(16, FeedForward(16)))
    >>> blocked = block(torch.randn(2, 5, 16), weights=True)
    >>> blocked.output.shape, blocked.attentions["self"].weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(self, self_attention: Sublayer, feed_forward: Sublayer) -> None:
        super().__init__()
        check_sublayers(self, self_attention=self_attention, feed_forward=feed_forward)
        warn_of_identity(self, self_attention.mechanism)
        self.self_attention = self_attention
        self.feed_forward = feed_forward

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
        attention, width = self.self_attention.mechanism, self.self_attention.width
        x = prepare_x(self, attention, x, width, mask=mask, causal=causal, past=past)
        x, attended = self.self_attention(
            x, mask=mask, causal=causal, state=past, weights=weights, reduce=reduce
        )
        x, _ = self.feed_forward(x)
        after = None if past is None else {"self": attended.state}
        return BlockOutput(x, {"self": attended}, after)

    @classmethod
    def from_torch(cls, layer: nn.TransformerEncoderLayer) -> EncoderBlock:
        """A block with a copy of the layer's parameters; batch first, whatever the layer is.

        Its masks mean the opposite of ours: `masks.from_torch` converts them.
        """
        if not isinstance(layer, nn.TransformerEncoderLayer):
            raise RegardError(
                f"EncoderBlock.from_torch: {type(layer).__name__}, expected "
                "nn.TransformerEncoderLayer"
            )
        return cls(
            sublayer_of(layer, layer.self_attn, layer.norm1, layer.dropout1),
            sublayer_of(layer, feed_forward_of(layer), layer.norm2, layer.dropout2),
        ).train(layer.training)
