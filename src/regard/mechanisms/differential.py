"""Differential attention: one softmax minus a learned multiple of another."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.bias import bias_of_heads
from regard.errors import RegardError, ShapeError
from regard.mechanisms.mixture import Mixture
from regard.recipe import Dot, Recipe
from regard.recipe import Mixture as MixtureRecipe
from regard.types import Mixed, Values


class Differential(Mixture):
    """weights = softmax(Q₁K₁ᵀ/√d) − λ softmax(Q₂K₂ᵀ/√d), headᵢ = (1 − λ_init) RMSNorm(weights V).

    λ = exp(λ_q1 · λ_k1) − exp(λ_q2 · λ_k2) + λ_init, λ_init = 0.8 − 0.6 exp(−0.3 (l − 1)). Rows sum
    to 1 − λ: what both attend to alike is taken away.

    Ye et al. 2024, "Differential transformer", equations 1 to 3.

    | here                                | paper                       | shape          |
    |-------------------------------------|-----------------------------|----------------|
    | `first_query`, `first_key`          | λ_q1, λ_k1                  | (head width,)  |
    | `second_query`, `second_key`        | λ_q2, λ_k2                  | (head width,)  |
    | `start`                             | λ_init                      | a number       |
    | `layer`                             | l, from 1                   |                |
    | `head_width`, `value_width`         | d, 2d                       |                |

    A part of `MultiHead`, which then projects two queries and keys for each head. The paper's sizes
    are `Heads(h, head_width=width // (2 * h), value_width=width // h)`. Queries and keys are laid
    out with all the first ones before all the second, as in the paper's h pairs of heads.

    Departures: the norm has no weights of its own, which the output projection can take over;
    dropout, of which the paper says nothing, is of each softmax by itself.

    Args:
        head_width: features of a query or key, as in `Heads`.
        layer: which layer of the model it is in, from 1.

    >>> import torch
    >>> from regard.mechanisms import Differential, Heads, MultiHead
    >>> heads = Heads(2, head_width=4, value_width=8)
    >>> attn = MultiHead(16, heads, mixture=Differential(4, layer=3))
    >>> weights = attn(torch.randn(2, 5, 16), causal=True, weights=True).weights
    >>> torch.testing.assert_close(weights.sum(-1), (1 - attn.mixture.factor()).expand(2, 2, 5))
    """

    def __init__(self, head_width: int, *, layer: int = 1) -> None:
        super().__init__()
        if layer < 1:
            raise RegardError(f"Differential: layer={layer}, expected 1 or more, the first is 1")
        self.layer = layer
        self.start = 0.8 - 0.6 * math.exp(-0.3 * (layer - 1))
        self.first_query, self.first_key, self.second_query, self.second_key = (
            nn.Parameter(0.1 * torch.randn(head_width)) for _ in range(4)
        )

    def factor(self) -> Tensor:
        """λ, a number; in float32 where parameters are half precision."""
        first = (self.first_query * self.first_key).sum(dtype=self._dtype)
        second = (self.second_query * self.second_key).sum(dtype=self._dtype)
        return first.exp() - second.exp() + self.start

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.first_query.dtype, torch.float32)

    def score_heads(self, heads: int) -> int:
        return 2 * heads

    def recipe(self, scored: Recipe, value: Values) -> Recipe:
        assert isinstance(scored, Dot)
        if len(self.first_query) != scored.query.shape[3]:
            raise ShapeError(
                f"Differential: head_width={len(self.first_query)}, expected "
                f"{scored.query.shape[3]}, that of the attention's heads"
            )
        heads = range(scored.shape.heads // 2)
        sinks = (None, None) if scored.sink is None else scored.sink.chunk(2)
        bias = bias_of_heads(scored.bias, heads)
        first, second = (
            replace(scored, query=query, key=key, mask=None, bias=bias, sink=sink)
            for query, key, sink in zip(scored.query.chunk(2, 1), scored.key.chunk(2, 1), sinks)
        )
        unit, factor = torch.ones((), dtype=self._dtype, device=scored.device), self.factor()
        return MixtureRecipe(
            (first, second),
            (unit.expand(len(heads)), -factor.expand(len(heads))),
            value,
            None if scored.mask is None else scored.mask.of_heads(heads),
        )

    def finish(self, mixed: Mixed) -> Mixed:
        """Each head at every position by itself, so that their scales are alike."""
        normed = F.rms_norm(mixed, (mixed.shape[-1],), eps=1e-5)
        return (1 - self.start) * normed

    def extra_repr(self) -> str:
        """What `print(module)` shows."""
        return f"head width {self.first_query.shape[0]}, layer {self.layer}"
