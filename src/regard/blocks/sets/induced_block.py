"""Induced set attention: self-attention of a set through a few learned points."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from regard.blocks.cross_block import CrossBlock
from regard.blocks.inputs import attention_shape, check_features, resolve_mask, without_padding
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.blocks.sets.set_block import SetBlock, check_parts
from regard.contract import BlockOutput
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask


class InducedBlock(SetBlock):
    """ISAB_m(X) = MAB(X, H), H = MAB(I, X): self-attention of a set in O(n m), not O(n²).

    Lee et al. 2019, "Set Transformer", section 3.1, equations 9 and 10.

    | here         | paper            | shape                                             |
    |--------------|------------------|---------------------------------------------------|
    | `points`     | I                | m × width, the inducing points                    |
    | `to_points`  | the MAB of H     | the points attend to the set: weights m × n       |
    | `to_set`     | the outer MAB    | the set attends to the points: weights n × m      |

    As in the paper, the blocks have `PostNorm` sub-layers and weights of their own; any two
    `CrossBlock`s of one width work.

    Args:
        points: `LearnedQueries(m, width)`.
        to_points: a `CrossBlock` from the points to the set.
        to_set: a `CrossBlock` from the set to the points.

    >>> import torch
    >>> from regard.blocks import CrossBlock, FeedForward, PostNorm
    >>> from regard.blocks.sets import InducedBlock, LearnedQueries
    >>> from regard.mechanisms import MultiHead
    >>> def cross():
    ...     return CrossBlock(PostNorm(16, MultiHead(16, 4)), PostNorm(16, FeedForward(16)))
    >>> block = InducedBlock(LearnedQueries(3, 16), cross(), cross())
    >>> blocked = block(torch.randn(2, 50, 16), weights=True)
    >>> {name: tuple(a.weights.shape) for name, a in blocked.attentions.items()}
    {'points.cross': (2, 4, 3, 50), 'set.cross': (2, 4, 50, 3)}
    """

    def __init__(self, points: LearnedQueries, to_points: CrossBlock, to_set: CrossBlock) -> None:
        super().__init__()
        check_parts(self, points, to_points=to_points, to_set=to_set)
        self.points = points
        self.to_points = to_points
        self.to_set = to_set

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """x's shape, and the attentions `points.cross`, `set.cross`; see `SetBlock.forward`.

        The mask is that of the points' attention to the set.
        """
        check_features(self, "x", x, self.points.width, x)
        points = self.points(x.shape[0])
        shape = attention_shape(self.to_points.cross_attention.mechanism, points, x.shape[1])
        x = without_padding(x, resolve_mask(self, "mask", mask, shape), shape)
        summary = self.to_points(points, x, context_mask=mask, weights=weights, reduce=reduce)
        blocked = self.to_set(x, summary.output, weights=weights, reduce=reduce)
        attentions = {
            "points.cross": summary.attentions["cross"],
            "set.cross": blocked.attentions["cross"],
        }
        return BlockOutput(blocked.output, attentions)
