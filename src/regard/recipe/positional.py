"""Recipes of weights that depend on positions alone: `Identity` and `Uniform`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.masks import Mask, clean
from regard.masks.parts import Padding, is_causal, own_positions, parts
from regard.recipe.base import QueryKeyRecipe, heads_of, per_head, span
from regard.types import (
    Block,
    Keys,
    Kind,
    Mixed,
    Queries,
    Values,
    Weights,
    register_pytree,
)

_This = TypeVar("_This", bound="Positional")


@dataclass(frozen=True, eq=False, repr=False)
class Positional(QueryKeyRecipe):
    """What `Identity` and `Uniform` share.

    Queries and keys are held for their sizes, dtype and device: no number of theirs is read.
    Query i stands at key position i + keys − queries, as with a cache.
    """

    query: Queries
    key: Keys
    value: Values | None = None
    mask: Mask | None = None

    def of_heads(self: _This, which: Sequence[int]) -> _This:
        return replace(self, **self._of_heads(which))

    def at(self: _This, batch: int, head: int) -> _This:
        return replace(self, **self._at(batch, head))

    def _of_heads(self, which: Sequence[int]) -> dict[str, Any]:
        """The fields of some heads."""
        heads = self.shape.heads
        return {
            "query": heads_of(self.query, which, heads),
            "key": heads_of(self.key, which, heads),
            "value": heads_of(self.value, which, heads),
            "mask": None if self.mask is None else self.mask.of_heads(which),
        }

    def _at(self, batch: int, head: int) -> dict[str, Any]:
        """The fields of one matrix."""
        example = slice(batch, batch + 1)

        def matrix(tensor: Tensor) -> Tensor:
            group = head // (self.shape.heads // tensor.shape[1])
            return tensor[example, group : group + 1]

        return {
            "query": matrix(self.query),
            "key": matrix(self.key),
            "value": None if self.value is None else matrix(self.value),
            "mask": None if self.mask is None else self.mask.at(batch, head),
        }

    def _block(self, rows: slice | None, columns: slice | None) -> Block:
        _, _, queries, keys = self.shape
        return Block.of(span(rows, queries), span(columns, keys, "columns"), queries, keys)

    def _values(self) -> Values:
        alive = None if self.mask is None else self.mask.alive(*self.shape[2:], self.device)
        return clean(super()._values(), alive)

    def _allowed(self, block: Block) -> Tensor:
        """Whether pairs of a block may attend; broadcasts to the block."""
        allowed = True if self.mask is None else self.mask.block(block, self.device)
        return (
            allowed
            if isinstance(allowed, Tensor)
            else torch.tensor([[[[allowed]]]], device=self.device)
        )


class Identity(Positional):
    """Each query attends to its own position: weight 1, or 0 where the mask forbids it."""

    @property
    def kind(self) -> Kind:
        return "partial"

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        block = self._block(rows, columns)
        row = torch.arange(block.top, block.bottom, device=self.device) + block.offset
        column = torch.arange(block.left, block.right, device=self.device)
        own = (column == row[:, None])[None, None] & self._allowed(block)
        return own.to(self.dtype).expand(*self.shape[:2], -1, -1)

    def mixed(self) -> Mixed:
        """The value at each query's own position."""
        _, heads, queries, keys = self.shape
        if 0 in self.shape:
            return self.mix(self.weights())
        own = per_head(self._values(), heads)
        position = own_positions(queries, keys, self.device)
        if torch.compiler.is_compiling() or queries != keys:  # a graph would keep the answer
            own = own.index_select(2, position.clamp_min(0))
        allowed = (position >= 0)[None, None]
        seen = None if self.mask is None else self.mask.own(queries, keys, self.device)
        if seen is not None:
            allowed = allowed & seen
        return torch.where(allowed[..., None], own, own.new_zeros(()))


class Uniform(Positional):
    """The same weight for every permitted key: 1/i for the i-th query of a causal attention."""

    @property
    def kind(self) -> Kind:
        return "distribution"

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        block = self._block(rows, columns)
        counts = self._counts()[:, :, block.rows, None]
        size = (*self.shape[:2], block.height, block.breadth)
        return (self._allowed(block).to(self.dtype) / counts).expand(size)

    def mixed(self) -> Mixed:
        """The mean of the permitted values: sums so far where the mask is causal, no matrix."""
        mask_parts = [] if self.mask is None else parts(self.mask)
        by_key = [isinstance(part, Padding) or is_causal(part) for part in mask_parts]
        if 0 in self.shape or not all(by_key):
            return super().mixed()
        value = self._values()  # padding is 0
        values = per_head(value, self.shape.heads).to(self.dtype)
        if any(is_causal(part) for part in mask_parts):
            sums = values.cumsum(2)
            if torch.compiler.is_compiling() or self.shape.queries != self.shape.keys:
                position = own_positions(*self.shape[2:], self.device)
                before = (position < 0)[:, None]
                sums = sums.index_select(2, position.clamp_min(0)).masked_fill(before, 0.0)
        else:
            sums = values.sum(2, keepdim=True)
        return (sums / self._counts()[..., None]).to(value.dtype)

    def _counts(self) -> Float[Tensor, "count_batch count_head query"]:
        """Permitted keys of each query; 1 where there is none, as nothing is divided by it."""
        _, _, queries, keys = self.shape
        if self.mask is None:
            return torch.full((1, 1, queries), max(1.0, keys), dtype=self.dtype, device=self.device)
        return self.mask.counts(queries, keys, self.device).clamp_min(1).to(self.dtype)


register_pytree(Identity)
register_pytree(Uniform)
