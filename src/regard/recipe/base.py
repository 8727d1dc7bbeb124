"""What every recipe can do."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, overload

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from regard.bias import Bias
from regard.errors import ShapeError, UnavailableError
from regard.masks import Mask
from regard.softmax import product
from regard.types import (
    NEVER,
    Block,
    Keys,
    Kind,
    Mixed,
    Queries,
    Shape,
    Values,
    Weights,
    brief,
    pieces,
)

_STRIP = 1 << 22  # scores evaluated at once when the full matrix is not asked for

_PLAIN = (int, float, str, bool)

_This = TypeVar("_This", bound="Recipe")


class Recipe(ABC):
    """What weights are made from. `weights()` and `mixed()` answer whenever asked."""

    value: Values | None
    #: rows and columns of the image whose positions, row by row, are the keys
    grid: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return brief(self)

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Batch, heads, queries, keys."""

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What the rows sum to."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype weights come in: float32, or float64 for float64 inputs."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        """Exact weights, before dropout; of some rows or columns where asked."""

    def weights_at(self, keys: Int[Tensor, "batch head column"]) -> Weights:
        """Weights on some keys of each matrix, (batch, head, query, column)."""
        strips = [self._rows_at(rows, keys) for rows in self._strips()]
        batch, heads, columns = keys.shape
        nothing = torch.zeros(batch, heads, 0, columns, dtype=self.dtype, device=self.device)
        return torch.cat([nothing, *strips], dim=2)

    def _rows_at(self, rows: slice, keys: Int[Tensor, "batch head column"]) -> Weights:
        """Some rows of `weights_at`."""
        return entries_at(self.weights(rows), keys)

    def log_weights(self, block: Block) -> Weights:
        """Logarithms of a block of weights, `NEVER` where a pair may not attend."""
        return logarithms(self.weights(block.rows, block.columns), self.kind)

    @abstractmethod
    def at(self, batch: int, head: int) -> Recipe:
        """The recipe of one matrix: batch and head of size one."""

    @abstractmethod
    def of_heads(self, which: Sequence[int]) -> Recipe:
        """The recipe of some heads."""

    def plain(self) -> Recipe:
        """The recipe in the form that gives tiles fastest; itself, unless it must be prepared."""
        return self

    def mixed(self) -> Mixed:
        """Weights times values, before dropout and output projection."""
        if torch.is_grad_enabled():
            return self.mix(self.weights())
        strips = [self.mix(self.weights(rows)) for rows in self._strips()]
        return torch.cat(strips, dim=2) if strips else self.mix(self.weights())

    def mix(self, weights: Weights) -> Mixed:
        """Some weights (after dropout, of some rows) times the values."""
        value = self._values()
        values = per_head(value, self.shape.heads).to(weights.dtype)
        return product(weights, values).to(value.dtype)

    def _values(self) -> Values:
        if self.value is None:
            raise UnavailableError("recipe.mixed(): this recipe was made without values")
        return self.value

    @property
    def nbytes(self) -> int:
        """Bytes of memory this recipe keeps alive (a storage shared by two tensors counts once)."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in tensors(self)
        }
        return sum(storages.values())

    def detach(self: _This) -> _This:
        """The same recipe outside the autograd graph."""
        return self.map(Tensor.detach)

    def map(self: _This, change: Callable[[Tensor], Tensor]) -> _This:
        """The same recipe with `change` made to every tensor in it, mask and bias included."""
        changed: _This = _mapped(self, change)
        return changed

    def _strips(self) -> list[slice]:
        row = self.shape.batch * self.shape.heads * max(1, self.shape.keys)
        return list(pieces(self.shape.queries, max(1, _STRIP // max(1, row))))


class QueryKeyRecipe(Recipe):
    """A recipe that holds queries and keys: its sizes, dtype and device are theirs."""

    query: Queries
    key: Keys

    @property
    def shape(self) -> Shape:
        batch, heads, queries, _ = self.query.shape
        return Shape(batch, heads, queries, self.key.shape[2])

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.query.device


def span(where: Any, length: int, name: str = "rows") -> slice:
    """A slice with plain ends, whatever way it was written."""
    if where is None:
        return slice(0, length)
    if not isinstance(where, slice):
        hint = f", as slice({where}, {where + 1})" if isinstance(where, int) else ""
        raise ShapeError(f"a block of weights is a slice{hint}; got {name}={where!r}")
    start, stop, step = where.indices(length)
    if step != 1:
        raise ShapeError(f"a block of weights is a plain range, got step {step} in {where}")
    return slice(start, max(start, stop))


def logarithms(weights: Tensor, kind: Kind) -> Tensor:
    """Logarithms of weights as they are, `NEVER` where they are 0."""
    if kind in ("signed", "gate"):
        raise UnavailableError(
            f"{kind} weights have no logarithm, as they need not be positive: take weights()"
        )
    some = weights > 0
    return torch.where(some, weights, 1.0).log().masked_fill(~some, NEVER)


def entries_at(
    matrix: Shaped[Tensor, "batch_or_1 head_or_1 query key"],
    keys: Int[Tensor, "batch head column"],
) -> Shaped[Tensor, "batch head query column"]:
    """What a matrix has at some keys of each head."""
    batch, heads, columns = keys.shape
    rows = matrix.shape[2]
    index = keys[:, :, None].expand(batch, heads, rows, columns)
    return matrix.expand(batch, heads, rows, matrix.shape[3]).gather(3, index)


def per_head(tensor: Tensor, heads: int) -> Tensor:
    """(batch, group, key, width) to (batch, head, key, width): each group serves its heads."""
    groups = tensor.shape[1]
    return tensor if groups == heads else tensor.repeat_interleave(heads // groups, dim=1)


def _mapped(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A recipe, mask or bias, or several of them, with every tensor changed."""
    if isinstance(part, Tensor):
        return change(part)
    if isinstance(part, tuple):
        return tuple(_mapped(inner, change) for inner in part)
    if not isinstance(part, Recipe | Bias | Mask):
        return part
    values = ((name, getattr(part, name)) for name in _field_names(type(part)))
    changed = {name: _mapped(value, change) for name, value in values if type(value) not in _PLAIN}
    return replace(part, **changed)  # type: ignore[type-var]


def tensors(part: Any) -> list[Tensor]:
    """Every tensor inside a recipe, its mask and its bias."""
    tensors: list[Tensor] = []
    _gather(part, tensors)
    return tensors


def _gather(part: Any, tensors: list[Tensor]) -> None:
    if isinstance(part, Tensor):
        tensors.append(part)
    elif isinstance(part, tuple):
        for inner in part:
            _gather(inner, tensors)
    elif part is not None and isinstance(part, Recipe | Mask | Bias):
        for name in _field_names(type(part)):
            inner = getattr(part, name)
            if inner is not None and type(inner) not in _PLAIN:
                _gather(inner, tensors)


@functools.cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


@overload
def heads_of(tensor: Tensor, which: Sequence[int], heads: int) -> Tensor: ...
@overload
def heads_of(tensor: None, which: Sequence[int], heads: int) -> None: ...
@overload
def heads_of(tensor: Tensor | None, which: Sequence[int], heads: int) -> Tensor | None: ...
def heads_of(tensor: Tensor | None, which: Sequence[int], heads: int) -> Tensor | None:
    """Some heads of a (batch, head or group or 1, …) tensor that serves `heads` heads."""
    if tensor is None or (tensor.shape[1] == 1 and heads > 1):
        return tensor
    share = heads // tensor.shape[1]
    if share == 1 and isinstance(which, range) and which.step == 1:
        return tensor[:, which.start : which.stop]  # a view
    return tensor[:, [head // share for head in which]]
