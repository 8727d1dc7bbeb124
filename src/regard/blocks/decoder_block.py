"""The decoder block: self-attention, attention to the encoder, feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.from_torch import feed_forward_of, sublayer_of
from regard.blocks.inputs import context_or_state, default_causal, prepare_x, states_by_name
from regard.blocks.sublayers import Sublayer, check_sublayers, warn_of_identity
from regard.contract import BlockOutput
from regard.errors import RegardError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class DecoderBlock(AttentionBlock):
    """Causal self-attention, cross-attention, then a feed-forward network at each position.

    Vaswani et al. 2017, "Attention is all you need", section 3.1. The `join` of a sub-layer
    joins the context to the stream: `Residual()` adds it; `ConcatProjection(width)` concatenates it
    to the state and projects both.

    Args:
        self_attention: a sub-layer around any `Mechanism`; causal unless a call says otherwise.
        cross_attention: a sub-layer around any `Mechanism`, whose keys are the context.
        feed_forward: a sub-layer around a module on features.

    >>> import torch
    >>> from regard.blocks import ConcatProjection, DecoderBlock, FeedForward, PreNorm
    >>> from regard.mechanisms import Additive, MultiHead
    >>> block = DecoderBlock(
    ...     PreNorm(16, MultiHead(16, 4)),
    ...     PreNorm(16, Additive(16, 6, width=8), join=ConcatProjection(16, 6)),
    ...     PreNorm(16, FeedForward(16)),
    ... )
    >>> blocked = block(torch.randn(2, 5, 16), torch.randn(2, 7, 6), weights=True)
    >>> blocked.attentions["cross"].weights.shape
    torch.Size([2, 1, 5, 7])
    """

    causal = True
    needs_context = True

    def __init__(
        self, self_attention: Sublayer, cross_attention: Sublayer, feed_forward: Sublayer
    ) -> None:
        super().__init__()
        check_sublayers(
            self,
            self_attention=self_attention,
            cross_attention=cross_attention,
            feed_forward=feed_forward,
        )
        warn_of_identity(self, self_attention.mechanism)
        self.self_attention = self_attention
        self.cross_attention = cross_attention
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
        """Attentions `self` and `cross`; see `AttentionBlock.forward`.

        A state holds the positions so far, which grow, and the projected context, which is fixed,
        each with its padding.
        """
        causal = default_causal(self, causal, state)
        past = states_by_name(self, state, "self", "cross")
        attention, width = self.self_attention.mechanism, self.self_attention.width
        x = prepare_x(self, attention, x, width, mask=mask, causal=causal, past=past["self"])
        attention = self.cross_attention.mechanism
        keys, memory = context_or_state(
            self, attention, x, context, mask=context_mask, past=past["cross"]
        )
        requests = {"weights": weights, "reduce": reduce}
        x, own = self.self_attention(x, mask=mask, causal=causal, state=past["self"], **requests)
        x, cross = self.cross_attention(x, keys, mask=context_mask, state=memory, **requests)
        x, _ = self.feed_forward(x)
        after = None if memory is None else {"self": own.state, "cross": cross.state}
        return BlockOutput(x, {"self": own, "cross": cross}, after)

    @classmethod
    def from_torch(cls, layer: nn.TransformerDecoderLayer) -> DecoderBlock:
        """A block with a copy of the layer's parameters; batch first, whatever the layer is.

        Its masks mean the opposite of ours: `masks.from_torch` converts them. Torch's layer is
        causal only with such a mask, this one unless `causal=False`.
        """
        if not isinstance(layer, nn.TransformerDecoderLayer):
            raise RegardError(
                f"DecoderBlock.from_torch: {type(layer).__name__}, expected "
                "nn.TransformerDecoderLayer"
            )
        return cls(
            sublayer_of(layer, layer.self_attn, layer.norm1, layer.dropout1),
            sublayer_of(layer, layer.multihead_attn, layer.norm2, layer.dropout2),
            sublayer_of(layer, feed_forward_of(layer), layer.norm3, layer.dropout3),
        ).train(layer.training)
