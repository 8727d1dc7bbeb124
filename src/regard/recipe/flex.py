"""The recipe of flex attention: scores and a mask made by the user's own functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard.normalise import product
from regard.recipe.base import per_head
from regard.recipe.given import Given
from regard.recipe.softmaxed import Softmaxed
from regard.types import Block, Keys, LogSumExp, Queries, Scores, Values, register_pytree

ScoreMod = Callable[..., Tensor]
MaskMod = Callable[..., Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Flex(Softmaxed):
    """Softmax of score_mod(scale · query · key, batch, head, query, key) where mask_mod permits.

    `examples` and `heads` are the numbers that the functions are told, so that a part of a batch
    is still itself. The functions are code: saving turns the recipe into weights.
    """

    query: Queries
    key: Keys
    examples: Int[Tensor, " batch"]
    heads: Int[Tensor, " head"]
    value: Values | None = None
    score_mod: ScoreMod | None = None
    mask_mod: MaskMod | None = None
    scale: float = 1.0
    mask: None = None
    bias: None = None
    lse: LogSumExp | None = None

    def _raw_scores(self, block: Block) -> Scores:
        query = self.query[:, :, block.rows].to(self.dtype) * self.scale
        key = self.key[:, :, block.columns].to(self.dtype)
        scores = product(query, per_head(key, self.query.shape[1]).mT)
        places = (
            self.examples,
            self.heads,
            torch.arange(block.top, block.bottom, device=self.device),
            torch.arange(block.left, block.right, device=self.device),
        )
        if self.score_mod is not None:
            scores = _everywhere(self.score_mod, scores)(scores, *places).to(self.dtype)
        if self.mask_mod is not None:
            allowed = _everywhere(self.mask_mod)(*places)
            scores = scores.masked_fill(~allowed, -torch.inf)
        return scores

    def of_heads(self, which: Sequence[int]) -> Flex:
        return replace(self, **self._of_heads(which), heads=self.heads[list(which)])

    def at(self, batch: int, head: int) -> Flex:
        one, only = slice(batch, batch + 1), slice(head, head + 1)
        return replace(
            self, **self._at(batch, head), examples=self.examples[one], heads=self.heads[only]
        )

    def given(self) -> Given:
        """The weights themselves: what can be saved."""
        return Given(self.weights(), self.value)


def _everywhere(function: Callable[..., Any], scores: Tensor | None = None) -> Callable[..., Any]:
    """`function` of one place, at all places of (batch, head, query, key)."""
    first = () if scores is None else (0,)
    for axis in (3, 2, 1, 0):
        places: list[int | None] = [None] * 4
        places[axis] = 0
        function = torch.vmap(function, in_dims=(*first, *places))
    return function


register_pytree(Flex, static=("score_mod", "mask_mod", "scale"))
