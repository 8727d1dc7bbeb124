"""What mechanisms have in common whose queries are answered one after the other."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.bias import Bias, bias_block
from regard.contract import State
from regard.masks import clean
from regard.mechanisms.from_recipe import FromRecipe
from regard.mechanisms.inputs import Inputs, Widths, check_held
from regard.recipe import Recipe, Unrolled
from regard.types import whole


class Stepwise(FromRecipe):
    """A mechanism whose weights of a query depend on those of the queries before it.

    One number per key, its `memory`, is handed from query to query; the state hands it from call to
    call. A mechanism says how a query scores the keys (`score`), and how scores and memory become
    weights and the memory of the next query (`weigh`). Queries are answered in a loop.

    A state's keys have the memory as their last two features, what the dtype can hold of it and
    the rest, so that half precision does not lose small additions.
    """

    fresh: float = 0.0  #: the memory of a key that no query has been offered yet
    to_query: nn.Linear  #: query width → width
    to_key: nn.Linear  #: key width → width

    @abstractmethod
    def score(
        self,
        query: Float[Tensor, "batch 1 width"],
        key: Float[Tensor, "batch key width"],
        memory: Float[Tensor, "batch key"],
    ) -> Float[Tensor, "batch key"]:
        """The scores of one query."""

    @abstractmethod
    def weigh(
        self,
        scores: Float[Tensor, "batch key"],
        memory: Float[Tensor, "batch key"],
        allowed: Bool[Tensor, "batch key"],
    ) -> tuple[Float[Tensor, "batch key"], Float[Tensor, "batch key"]]:
        """The weights of one query, and the memory for the next."""

    def widths(self, query_width: int) -> Widths:
        return Widths(self.to_query.in_features, self.to_key.in_features)

    def prepare(self, key: Tensor, value: Tensor, *, start: int = 0) -> tuple[Tensor, Tensor]:
        projected = self.to_key(key)
        memory = projected.new_full(projected.shape[:2], self.fresh)
        return _with_memory(projected, memory)[:, None], value[:, None]  # (batch, 1, key, width)

    def recipe(self, inputs: Inputs, bias: Tensor | Bias | None) -> Recipe:
        batch, _, queries, keys = inputs.shape
        check_held(
            type(self).__name__,
            inputs.key,
            inputs.value,
            (batch, 1, keys, self.to_key.out_features + 2),
            (batch, 1, keys, inputs.value.shape[-1]),
        )
        dtype = torch.promote_types(inputs.key.dtype, torch.float32)
        query, held = self.to_query(inputs.query).to(dtype), inputs.key[:, 0].to(dtype)
        key, memory = held[..., :-2], held[..., -2:].sum(-1)
        block, value, device = whole(queries, keys), inputs.value, query.device
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if inputs.mask is not None:
            alive = inputs.mask.alive(queries, keys, device)
            key, value = clean(key, alive), clean(value, alive)
            allowed = inputs.mask.dense(queries, keys, device)
        allowed = allowed[:, 0].expand(batch, -1, -1)  # (batch, query, key)
        added = bias_block(bias, block)
        if added is not None:
            added = added.to(dtype)[:, 0].expand(batch, queries, keys)
        rows = []
        for i in range(queries):
            scores = self.score(query[:, i : i + 1], key, memory)
            if added is not None:
                scores = scores + added[:, i]
            weights, memory = self.weigh(scores, memory, allowed[:, i])
            rows.append(weights)
        matrix = torch.stack(rows, 1) if rows else query.new_zeros(batch, 0, keys)
        return Unrolled(matrix[:, None], value, self.kind, memory=memory)

    def remembered(self, state: State | None, recipe: Recipe) -> State | None:
        if state is None:
            return None
        assert isinstance(recipe, Unrolled) and recipe.memory is not None
        key = _with_memory(state.key[:, 0, :, :-2], recipe.memory)
        return replace(state, key=key[:, None], buffer=None)  # no longer a view of it


def _with_memory(
    key: Float[Tensor, "batch key width"], memory: Float[Tensor, "batch key"]
) -> Float[Tensor, "batch key wider"]:
    rounded = memory.to(key.dtype)
    rest = (memory - rounded.to(memory.dtype)).to(key.dtype)
    return torch.cat([key, rounded[..., None], rest[..., None]], dim=-1)
