"""One attention that is about to run: where, how large, and at which positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError, UnavailableError
from regard.record import Site
from regard.types import Block, Shape

_AXES = ("batch", "head", "query", "key")


class Words(NamedTuple):
    """Tokens of the queries and of the keys, where they are known."""

    queries: Sequence[Any] | None = None
    keys: Sequence[Any] | None = None


class AttentionCall(NamedTuple):
    """One call of an attention; positions are absolute, also over a cache."""

    site: Site
    shape: Shape
    first: int | None  # position of the first query, if it is known
    first_key: int
    dtype: torch.dtype
    device: torch.device
    words: Words = Words()
    gathered: bool = False  # every query has keys of its own, so keys have no positions
    opening: bool = False  # in the first pass of a block
    growing: bool = False  # keys are of a cache, so that later steps may have more

    @property
    def first_query(self) -> int:
        """The position of the first query."""
        if self.first is None:
            raise UnavailableError(
                f"'{self.site.name}' has {self.shape.queries} queries and {self.shape.keys} keys, "
                "and neither a cache nor a mask tells which positions the queries have; change "
                "all queries alike, with heads= and keys="
            )
        return self.first

    @property
    def n_queries(self) -> int:
        """How many query positions there are so far."""
        return self.first_query + self.shape.queries

    @property
    def n_keys(self) -> int:
        """How many key positions there are so far; a static cache has room for more."""
        if self.site.attends == "cross" or self.first is None:
            return self.first_key + self.shape.keys
        return min(self.first_key + self.shape.keys, max(self.n_queries, 1))

    @property
    def block(self) -> Block:
        """The pairs of this call among all pairs of absolute positions, for a mask."""
        end = self.first_key + self.shape.keys
        plane = end if self.site.attends == "cross" else self.n_queries
        return Block(self.first_query, self.n_queries, self.first_key, end, self.n_queries, plane)

    def positions(self, axis: int) -> Tensor:
        """Absolute positions of the queries (axis 2) or keys (axis 3)."""
        start = self.first_query if axis == 2 else self.first_key
        return torch.arange(start, start + self.shape[axis], device=self.device)

    def part(self, tensor: Tensor, what: str) -> Tensor:
        """What a tensor over absolute positions, (batch | 1, head | 1, query | 1, key | 1), says of
        this call."""
        if tensor.dim() == 0:
            return tensor.view(1, 1, 1, 1)
        if tensor.dim() != 4:
            raise ShapeError(
                f"{what}: a tensor of {tensor.dim()} axes {tuple(tensor.shape)}, expected (batch "
                f"or 1, head or 1, query or 1, key or 1) at '{self.site.name}', "
                f"{tuple(self.shape)}"
            )
        for axis in (0, 1):
            if tensor.shape[axis] not in (1, self.shape[axis]):
                raise self.misfit(what, tensor, axis, f"1 or {self.shape[axis]}")
        for axis in (2, 3):
            size = tensor.shape[axis]
            if size == 1:
                continue
            start = self.first_query if axis == 2 else self.first_key
            end = start + self.shape[axis]
            if size < end:
                raise self.misfit(what, tensor, axis, f"1 or at least {end}")
            tensor = tensor.narrow(axis, start, self.shape[axis])
        return tensor

    def misfit(self, what: str, tensor: Tensor, axis: int, expected: str) -> ShapeError:
        """The error of a tensor whose axis does not fit."""
        return ShapeError(
            f"{what}: {tuple(tensor.shape)}, axis {axis} ({_AXES[axis]}) has size "
            f"{tensor.shape[axis]}, expected {expected} at '{self.site.name}', which is "
            f"({', '.join(_AXES)}) = {tuple(self.shape)}"
        )
