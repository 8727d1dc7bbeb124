"""The cross block: attention to a context, then feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.inputs import (
    attention_shape,
    check_features,
    context_or_state,
    resolve_mask,
    states_by_name,
    without_padding,
)
from regard.blocks.sublayers import Sublayer, check_sublayers, width_of
from regard.contract import BlockOutput, RecurrentState, State
from regard.errors import ShapeError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.mechanisms import FromRecipe


class CrossBlock(AttentionBlock):
    """Cross-attention, then a feed-forward network at each position; there is no self-attention.

    With `PostNorm` sub-layers it is the multihead attention block of Lee et al. 2019, "Set
    Transformer", equations 6 and 7: MAB(X, Y) = LayerNorm(H + rFF(H)), H = LayerNorm(X +
    Multihead(X, Y, Y)). With `PreNorm` and a `context_norm` it is the cross-attend module of Jaegle
    et al. 2021, "Perceiver", where latents and inputs are normalised separately.

    | here             | Set Transformer | Perceiver       |
    |------------------|-----------------|-----------------|
    | `x`              | X               | latents, N × D  |
    | `context`        | Y               | inputs, M × C   |
    | `feed_forward`   | rFF             | MLP             |

    The authors' code of the Set Transformer adds the *projected* X to the answer of the attention;
    this follows the paper.

    Args:
        cross_attention: a sub-layer around any `Mechanism`, whose keys are the context.
        feed_forward: a sub-layer around a module on features.
        context_norm: a module on the context, such as `nn.LayerNorm(context_width)`; none by
            default.

    >>> import torch
    >>> from regard.blocks import CrossBlock, FeedForward, PreNorm
    >>> from regard.mechanisms import MultiHead
    >>> block = CrossBlock(
    ...     PreNorm(16, MultiHead(16, 1, inputs=(6, 6))),
    ...     PreNorm(16, FeedForward(16)),
    ...     context_norm=torch.nn.LayerNorm(6),
    ... )
    >>> blocked = block(torch.randn(2, 5, 16), torch.randn(2, 7, 6), weights=True)
    >>> blocked.output.shape, blocked.attentions["cross"].weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 1, 5, 7]))
    """

    needs_context = True
    attends_itself = False

    def __init__(
        self,
        cross_attention: Sublayer,
        feed_forward: Sublayer,
        *,
        context_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_sublayers(self, cross_attention=cross_attention, feed_forward=feed_forward)
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.context_norm = nn.Identity() if context_norm is None else context_norm
        norm_width = width_of(context_norm, self.width)
        if None not in (norm_width, self.context_width) and norm_width != self.context_width:
            raise ShapeError(
                f"CrossBlock: context_norm takes width {norm_width}, expected "
                f"{self.context_width}, the keys of {type(cross_attention.part).__name__}"
            )

    @property
    def width(self) -> int:
        """Features of x."""
        return self.cross_attention.width

    @property
    def context_width(self) -> int | None:
        """Features of the context; None where the mechanism does not say."""
        attention = self.cross_attention.mechanism
        keys = attention.widths(self.width).key if isinstance(attention, FromRecipe) else None
        return width_of(self.context_norm, self.width) if keys is None else keys

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
        """Attention `cross`; see `AttentionBlock.forward`.

        Positions of x do not attend to each other, so `causal` has no effect, and `mask` only
        marks padding. A state holds the projected context.
        """
        check_features(self, "x", x, self.width, x)
        attention = self.cross_attention.mechanism
        past = states_by_name(self, state, "cross")["cross"]
        earlier = past.step if isinstance(past, State | RecurrentState) else 0  # positions
        shape = attention_shape(attention, x, earlier + x.shape[1])
        x = without_padding(x, resolve_mask(self, "mask", mask, shape), shape)
        keys, memory = context_or_state(
            self,
            attention,
            x,
            context,
            mask=context_mask,
            past=past,
            width=self.context_width,
            norm=self.context_norm,
        )
        x, attended = self.cross_attention(
            x, keys, mask=context_mask, state=memory, weights=weights, reduce=reduce
        )
        x, _ = self.feed_forward(x)
        after = None if memory is None else {"cross": attended.state}
        return BlockOutput(x, {"cross": attended}, after)
