"""The recipe of flex attention: scores and a mask made by the user's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.bias import Bias
from regard.masks import Mask
from regard.recipe.base import per_head
from regard.recipe.given import Given
from regard.recipe.normalisers import Normaliser
from regard.recipe.softmaxed import Softmaxed
from regard.softmax import product
from regard.types import Block, Keys, LogSumExp, Queries, Scores, Values, register_pytree

ScoreMod = Callable[..., Tensor]
MaskMod = Callable[..., Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Flex(Softmaxed):
    """Softmax of score_mod(scale · query · key, batch, head, query, key) + bias, where mask and
    mask_mod permit.

    `examples` and `heads` are the numbers that the functions are told, so that a part of a batch
    is still itself; `query_positions` and `key_positions` too, counted from 0 where None. The
    functions are code: saving turns the recipe into weights.
    """

    query: Queries
    key: Keys
    examples: Int[Tensor, " batch"]
    heads: Int[Tensor, " head"]
    value: Values | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    scale: float = 1.0
    mask: Mask | None = None
    bias: Tensor | Bias | None = None
    sink: Float[Tensor, " head"] | None = None
    lse: LogSumExp | None = None
    normaliser: Normaliser | None = None
    query_positions: Int[Tensor, " query"] | None = None
    key_positions: Int[Tensor, " key"] | None = None

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows].to(self.dtype) * self.scale
        key = self._seen(self.key)[:, :, block.columns].to(self.dtype)
        scores = product(query, per_head(key, self.query.shape[1]).mT)
        if 0 in scores.shape:  # functions of nowhere cannot be called
            return scores
        places = (
            self.examples,
            self.heads,
            self._positions(self.query_positions, block.rows),
            self._positions(self.key_positions, block.columns),
        )
        if self.score_mod is not None:
            scores = _everywhere(self.score_mod, scores)(scores, *places).to(self.dtype)
        if self.mask_mod is not None:
            allowed = _everywhere(self.mask_mod)(*places)
            scores = scores.masked_fill(~allowed, -torch.inf)
        return scores

    def _positions(self, positions: Tensor | None, span: slice) -> Tensor:
        if positions is None:
            return torch.arange(span.start, span.stop, device=self.device)
        return positions[span]

    def of_heads(self, which: Sequence[int]) -> Flex:
        sink = None if self.sink is None else self.sink[list(which)]
        return replace(self, **self._of_heads(which), heads=self.heads[list(which)], sink=sink)

    def at(self, batch: int, head: int) -> Flex:
        example, own_head = slice(batch, batch + 1), slice(head, head + 1)
        sink = None if self.sink is None else self.sink[own_head]
        return replace(
            self,
            **self._at(batch, head),
            examples=self.examples[example],
            heads=self.heads[own_head],
            sink=sink,
        )

    def given(self) -> Given:
        """The weights themselves: what can be saved."""
        return Given(self.weights(), self.value, self.kind)


def _everywhere(function: Callable[..., Any], scores: Tensor | None = None) -> Callable[..., Any]:
    """`function` of one place, at all places of (batch, head, query, key)."""
    first = () if scores is None else (0,)
    for axis in (3, 2, 1, 0):
        dims: list[int | None] = [None] * 4
        dims[axis] = 0
        function = torch.vmap(function, in_dims=(*first, *dims))
    return function


register_pytree(Flex, static=("score_mod", "mask_mod", "scale"))
