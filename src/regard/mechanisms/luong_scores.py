"""The scores of Luong attention (Luong et al. 2015, eq. 8 and section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.bias import Bias, bias_block
from regard.masks import Mask, clean
from regard.mechanisms.inputs import Widths
from regard.recipe import Additive, Dot, Given, Recipe
from regard.softmax import softmax
from regard.types import whole


class Score(nn.Module):
    """How a pair is scored: what is computed once for the keys, and the recipe of the rest.

    As it stands: dot products of queries and keys.
    """

    longest: int | None = None

    def widths(self, query_width: int) -> Widths:
        """Features that fit, given those of the query."""
        return Widths(key=query_width)

    def keys(self, key: Tensor) -> Tensor:
        """What is computed once per sentence, (batch, key, width)."""
        return key

    def recipe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Tensor | Bias | None,
    ) -> Recipe:
        """The recipe of a query (batch, query, width) against keys (batch, 1, key, width)."""
        return Dot(query[:, None], key, value, mask=mask, bias=bias)


class DotScore(Score):
    """hₜᵀ h̄ₛ: widths must be equal, nothing is learned."""


class GeneralScore(Score):
    """hₜᵀ Wₐ h̄ₛ."""

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.sizes = Widths(query_width, key_width)
        self.to_key = nn.Linear(key_width, query_width, bias=False)
        nn.init.uniform_(self.to_key.weight, -0.1, 0.1)

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def keys(self, key: Tensor) -> Tensor:
        projected: Tensor = self.to_key(key)
        return projected


class ConcatScore(Score):
    """vₐᵀ tanh(Wₐ [hₜ; h̄ₛ]), Wₐ cut into its two halves."""

    def __init__(self, query_width: int, key_width: int, *, width: int) -> None:
        super().__init__()
        self.sizes = Widths(query_width, key_width)
        self.to_query = nn.Linear(query_width, width, bias=False)
        self.to_key = nn.Linear(key_width, width, bias=False)
        self.vector = nn.Parameter(torch.empty(width))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def widths(self, query_width: int) -> Widths:
        return self.sizes

    def keys(self, key: Tensor) -> Tensor:
        projected: Tensor = self.to_key(key)
        return projected

    def recipe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Tensor | Bias | None,
    ) -> Recipe:
        queries = self.to_query(query)[:, None]
        return Additive(queries, key, self.vector, value, mask=mask, bias=bias)


class LocationScore(Score):
    """aₜ = softmax(Wₐ hₜ): a score for each *position*, up to `longest`; the keys are ignored."""

    def __init__(self, query_width: int, *, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.to_scores = nn.Linear(query_width, longest, bias=False)
        nn.init.uniform_(self.to_scores.weight, -0.1, 0.1)

    def widths(self, query_width: int) -> Widths:
        return Widths(self.to_scores.in_features)

    def recipe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Tensor | Bias | None,
    ) -> Recipe:
        block = whole(query.shape[1], key.shape[2])
        scores = self.to_scores(query)[:, None, :, : key.shape[2]]  # (batch, 1, query, key)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        added = bias_block(bias, block)
        if added is not None:
            scores = scores + added
        if mask is None:
            return Given(softmax(scores), value)
        allowed = mask.dense(block.queries, block.keys, query.device)
        value = clean(value, mask.alive(block.queries, block.keys, value.device))
        return Given(softmax(scores.masked_fill(~allowed, -torch.inf)), value)
