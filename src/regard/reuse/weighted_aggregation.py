"""Weighted aggregation: an attention's weights mix features again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.checks import check_module_dtype, check_sizes
from regard.errors import RegardError
from regard.masks import clean
from regard.reuse.heads import HeadJoin, Joining, OwnProjections, OwnSlices
from regard.reuse.layer import ReuseLayer
from regard.reuse.source import Source
from regard.softmax import product
from regard.types import Features


class WeightedAggregation(ReuseLayer):
    """Y = concatₕ(Aₕ Xₕ) W, or (A X) W where heads are joined to one map A.

    Features belong to keys, the output to queries; in self-attention those are the same positions.
    There is no residual connection: write x + layer(x, attended).

    | `heads`                       | what is mixed                                               |
    |-------------------------------|-------------------------------------------------------------|
    | `OwnSlices()`                 | each head mixes its own slice of the features               |
    | `OwnProjections(width, heads)`| each head mixes its own projection of them, learned         |
    | "mean", "max", "min", 3       | one map of `regard.combine_heads` mixes all of them         |
    | a weighting (head,)           | one map, Σₕ sₕ Aₕ                                           |
    | `LearnedHeadMix(heads)`       | one map, Σₕ softmax(m)ₕ Aₕ, with m learned                  |
    | "concat"                      | each head mixes all features: heads × width go into W       |

    Args:
        width: features a position.
        n_heads: number of heads of the weights.
        heads: how heads are kept apart or joined; `OwnSlices()` when None.
        output_width: features of the output; `width` when None.
        bias: whether the projection has one; it is then the output of a query without keys.

    >>> import torch
    >>> from regard.mechanisms import MultiHead
    >>> from regard.reuse import WeightedAggregation
    >>> attn, again = MultiHead(16, 4), WeightedAggregation(16, 4)
    >>> x = torch.randn(2, 5, 16)
    >>> attended = attn(x, weights=True)
    >>> again(attended.output, attended).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        width: int,
        n_heads: int,
        *,
        heads: OwnSlices | OwnProjections | Joining | None = None,
        output_width: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        output_width = width if output_width is None else output_width
        check_sizes("WeightedAggregation", width=width, n_heads=n_heads, output_width=output_width)
        self.width, self.n_heads = width, n_heads
        heads = OwnSlices() if heads is None else heads
        if isinstance(heads, type):
            raise RegardError(f"WeightedAggregation: heads={heads.__name__}, expected an instance")
        self.heads: OwnSlices | OwnProjections | HeadJoin
        if isinstance(heads, OwnSlices | OwnProjections):
            self.heads = heads
            mixed_width = heads.mixed_width(width, n_heads)
        else:
            self.heads = HeadJoin("WeightedAggregation", heads, n_heads)
            mixed_width = width * self.heads.maps
        self.project = nn.Linear(mixed_width, output_width, bias=bias)

    def reuse(self, features: Features, source: Source) -> Tensor:
        """Features of the keys, mixed and projected: (batch, query, output width)."""
        source.check_features("WeightedAggregation", features, self.width, "key")
        check_module_dtype("WeightedAggregation: features", features, self)
        source.check_heads("WeightedAggregation", self.n_heads)
        features = clean(features, source.alive)
        matrix = source.weights("key")
        if isinstance(self.heads, HeadJoin):
            mixed = _mixed(self.heads(matrix), features[:, None])
        else:
            mixed = _mixed(matrix, self.heads(features, self.n_heads))
        projected: Tensor = self.project(mixed.to(features.dtype))
        return projected


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    """(batch, head, query, key) × (batch, head, key, width) to (batch, query, head · width)."""
    dtype = torch.promote_types(weights.dtype, values.dtype)
    return product(weights.to(dtype), values.to(dtype)).transpose(1, 2).flatten(2)
