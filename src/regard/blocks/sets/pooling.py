"""Pooling by attention: learned queries attend to a set."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from regard.blocks.cross_block import CrossBlock
from regard.blocks.inputs import attention_shape, check_features, resolve_mask, without_padding
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.blocks.sets.set_block import SetBlock, check_parts
from regard.blocks.sublayers import width_of
from regard.contract import BlockOutput
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class Pooling(SetBlock):
    """PMA_k(Z) = MAB(S, rFF(Z)): k vectors that pool a set by attention.

    Lee et al. 2019, "Set Transformer", section 3.2, equation 11. Unlike in a mean, the weight of
    each member is learned.

    | here           | paper | shape                                              |
    |----------------|-------|----------------------------------------------------|
    | `queries`      | S     | k × width, the seed vectors                        |
    | `block`        | MAB   | with `PostNorm` sub-layers, as in the paper        |
    | `feed_forward` | rFF   | on each member of the set; left out when None      |

    Args:
        queries: `LearnedQueries(k, width)`.
        block: a `CrossBlock` of that width; its context is the set.
        feed_forward: a module on features before the attention.

    >>> import torch
    >>> from regard.blocks import CrossBlock, FeedForward, PostNorm
    >>> from regard.blocks.sets import LearnedQueries, Pooling
    >>> from regard.mechanisms import MultiHead
    >>> block = CrossBlock(PostNorm(16, MultiHead(16, 4)), PostNorm(16, FeedForward(16)))
    >>> pooling = Pooling(LearnedQueries(3, 16), block)
    >>> blocked = pooling(torch.randn(2, 50, 16), weights=True)
    >>> blocked.output.shape, blocked.attentions["cross"].weights.shape
    (torch.Size([2, 3, 16]), torch.Size([2, 4, 3, 50]))
    """

    def __init__(
        self, queries: LearnedQueries, block: CrossBlock, *, feed_forward: nn.Module | None = None
    ) -> None:
        super().__init__()
        check_parts(self, queries, block=block)
        self.n_outputs = queries.n_queries
        self.queries = queries
        self.block = block
        self.feed_forward = nn.Identity() if feed_forward is None else feed_forward
        width = block.context_width
        self._set_width = width if feed_forward is None else width_of(feed_forward, block.width)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """(batch, k, width) of a set, and the attention `cross`; see `SetBlock.forward`."""
        check_features(self, "x", x, self._set_width, x)
        queries = self.queries(x.shape[0])
        shape = attention_shape(self.block.cross_attention.mechanism, queries, x.shape[1])
        x = without_padding(x, resolve_mask(self, "mask", mask, shape), shape)
        blocked: BlockOutput = self.block(
            queries, self.feed_forward(x), context_mask=mask, weights=weights, reduce=reduce
        )
        return blocked
