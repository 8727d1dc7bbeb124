"""The recipe of a model that made its own matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.recipe.base import Recipe, heads_of
from regard.types import Kind, Shape, Values, Weights, register_pytree


@dataclass(frozen=True, eq=False, repr=False)
class Given(Recipe):
    """A matrix somebody else made, held as it is, with the kind its rows are.

    `grid`: rows and columns of the image whose positions, row by row, are the keys.
    """

    matrix: Weights
    value: Values | None = None
    of: Kind = "distribution"
    grid: tuple[int, int] | None = None

    @property
    def shape(self) -> Shape:
        return Shape(*self.matrix.shape)

    @property
    def kind(self) -> Kind:
        return self.of

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.matrix.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        return self.matrix[:, :, rows or slice(None), columns or slice(None)].to(self.dtype)

    def of_heads(self, which: Sequence[int]) -> Given:
        value = heads_of(self.value, which, self.shape.heads)
        return Given(self.matrix[:, list(which)], value, self.of, self.grid)

    def at(self, batch: int, head: int) -> Given:
        example = slice(batch, batch + 1)
        group = 0
        if self.value is not None:
            group = head // (self.matrix.shape[1] // self.value.shape[1])
        value = None if self.value is None else self.value[example, group : group + 1]
        return Given(self.matrix[example, head : head + 1], value, self.of, self.grid)


@dataclass(frozen=True, eq=False, repr=False)
class Unrolled(Given):
    """A matrix made row by row, and the memory that its last row left."""

    memory: Float[Tensor, "batch key"] | None = None


register_pytree(Given, static=("of", "grid"))
register_pytree(Unrolled, static=("of", "grid"), optional=("memory",))
