"""The Reducer contract: what may be asked of attention without ever holding the matrix.

A reducer is about *one* matrix, the queries × keys weights of one example and head. The tile
engine makes a copy for each matrix, calls `start`, then `tile` for every block of the matrix,
`merge` where two threads shared the work, and stacks the `result`s over batch and head.

>>> import torch, regard
>>> class PreviousToken(regard.Reducer):
...     "Mean weight on the key just before the query."
...     def start(self, matrix):
...         self.total, self.queries = matrix.zeros(), matrix.queries
...     def tile(self, rows, columns, log_weights, weights):
...         self.total += weights.diagonal(rows.start - columns.start - 1).sum()
...     def merge(self, other):
...         self.total += other.total
...     def result(self):
...         return self.total / (self.queries - 1)
>>> q = torch.randn(1, 2, 5, 8)
>>> regard.attend(q, q, q, reduce=[PreviousToken()]).reductions[0].shape
torch.Size([1, 2])
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.recipe import Recipe
from regard.recipe.base import heads_of
from regard.types import NEVER, Kind

_This = TypeVar("_This", bound="Reducer")


class Matrix(NamedTuple):
    """The matrix a reducer is about to see."""

    batch: int  #: which example
    examples: int  #: how many examples there are
    head: int  #: which head; the first one for a reducer across heads
    heads: int  #: how many heads there are
    queries: int
    keys: int
    dtype: torch.dtype
    device: torch.device
    #: rows and columns of the image whose positions, row by row, are the keys
    grid: tuple[int, int] | None = None
    #: sizes of the axes in front, (batch, head) or (batch,), where several matrices come stacked
    stacked: tuple[int, ...] = ()

    def own(self, tensor: Tensor) -> Tensor:
        """What a (batch or 1, …) tensor has for this example; zeros where there are no examples.
        For stacked matrices all of it, with an axis of size one for the heads."""
        if self.stacked:
            return tensor if len(self.stacked) == 1 else tensor.unsqueeze(1)
        if tensor.shape[0] == 0:
            return tensor.new_zeros(tensor.shape[1:])
        return tensor[self.batch if tensor.shape[0] > 1 else 0]

    def own_head(self, tensor: Tensor) -> Tensor:
        """What a (batch or 1, head or group or 1, …) tensor has for this matrix, or for the stacked
        ones."""
        if not self.stacked:
            group = self.head // max(1, self.heads // tensor.shape[1])
            return self.own(tensor)[group]
        heads = range(self.head, self.head + self.stacked[-1])
        return heads_of(tensor, heads, self.heads)

    def zeros(self, *shape: int) -> Tensor:
        """Zeros to add up in."""
        return torch.zeros((*self.stacked, *shape), dtype=self.dtype, device=self.device)

    def full(self, *shape: int) -> Tensor:
        """Log-weights of nothing, to take maxima in."""
        size = (*self.stacked, *shape)
        return torch.full(size, NEVER, dtype=self.dtype, device=self.device)


class Reducer(ABC):
    """Sees each tile of the weights once and keeps an answer.

    Class attributes say what the engine must do: `across_heads` feeds the tiles of every head of
    an example into one reducer; `needs_weights` or `needs_log_weights` False means that the other
    one is enough, and spares making it (None may come in its place); `whole_rows` asks for tiles
    that span all columns a row may attend to. `stackable` says that `start` and `tile` serve
    several matrices at once, with axes (batch, head) in front ((batch,) across heads): small
    matrices then take a few operations together instead of a few each.
    `differentiable=True` makes the answer part of the autograd graph, at the price of the full
    matrix; otherwise answers are detached.
    """

    across_heads: bool = False
    needs_weights: bool = True
    needs_log_weights: bool = True
    whole_rows: bool = False
    stackable: bool = False
    differentiable: bool = False
    matrix: Matrix  #: set by `started`

    def __init__(self, *, differentiable: bool = False) -> None:
        self.differentiable = differentiable

    def __repr__(self) -> str:
        options = {name: value for name, value in vars(self).items() if name != "matrix"}
        return f"{type(self).__name__}({', '.join(f'{k}={_short(v)}' for k, v in options.items())})"

    @abstractmethod
    def start(self, matrix: Matrix) -> None:
        """Make room for the answer."""

    @abstractmethod
    def tile(
        self,
        rows: slice,
        columns: slice,
        log_weights: Float[Tensor, "row column"] | None,
        weights: Float[Tensor, "row column"] | None,
    ) -> None:
        """Take one block. Both tensors are reused afterwards: copy what is to be kept.

        Where a pair may not attend, weights are 0 and log-weights a huge negative number, so
        that their product is 0. Blocks in which nothing may attend are not shown.
        """

    def last_tile(
        self,
        rows: slice,
        columns: slice,
        log_weights: Float[Tensor, "row column"] | None,
        weights: Float[Tensor, "row column"] | None,
    ) -> None:
        """The same as `tile`, but nobody looks at the tensors afterwards: they may be spoilt."""
        self.tile(rows, columns, log_weights, weights)

    @abstractmethod
    def merge(self, other: Any) -> None:
        """Add what another copy of this reducer saw of the same matrix."""

    @abstractmethod
    def result(self) -> Any:
        """The answer: a tensor or a tuple of tensors, of one size for every matrix."""

    def shortcut(self, recipe: Recipe) -> Any:
        """The stacked answer without tiles, where an identity or a few entries give it; or None."""
        return None

    def suited(self, kind: Kind) -> Reducer:
        """The reducer for weights of a kind: itself, or one that needs no logarithms where signed
        weights and gates have none."""
        return self

    def started(self: _This, matrix: Matrix) -> _This:
        """A copy of this reducer, ready for the tiles of `matrix`."""
        twin = copy.copy(self)
        twin.matrix = matrix
        twin.start(matrix)
        return twin

    def fork(self: _This) -> _This:
        """A started copy for a thread that will see other rows of the same matrix."""
        return self.started(self.matrix)


def _short(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)


class Sum(Reducer):
    """A reducer whose answer is one tensor, added up."""

    total: Tensor

    def merge(self, other: Any) -> None:
        self.total = self.total + other.total

    def result(self) -> Any:
        return self.total
