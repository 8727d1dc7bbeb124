"""What a record stores of an attention: references to the model's tensors, not copies.

The recipe is built from them on demand, outside the model's run, so that it can be part of the
autograd graph and costs nothing until then.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import StateError
from regard.recipe import Edges, Given, Recipe, tensors
from regard.types import Kind, Shape


class StoredAttention(ABC):
    """A recipe, or the tensors that one is built from."""

    @abstractmethod
    def recipe(self) -> Recipe: ...

    @property
    @abstractmethod
    def shape(self) -> Shape: ...

    @property
    @abstractmethod
    def kind(self) -> Kind: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @abstractmethod
    def tensors(self) -> Sequence[Tensor]: ...

    def own(self) -> Sequence[Tensor]:
        """Tensors that no earlier record stores."""
        return self.tensors()

    @abstractmethod
    def protect(self, storage: int) -> None:
        """Copy what is in this storage, which is about to be changed in place."""

    @property
    def value_held(self) -> bool:
        return False

    @property
    def n_edges(self) -> int | None:
        """The number of edges of one matrix, if weights are a list of edges."""
        return None


class StoredRecipe(StoredAttention):
    """A finished recipe, with the version of each tensor when it was recorded."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._tensors = recipe, tensors(recipe)
        self._versions = versions(self._tensors)

    def recipe(self) -> Recipe:
        check_versions(self._tensors, self._versions)
        return self._recipe

    @property
    def shape(self) -> Shape:
        return self._recipe.shape

    @property
    def kind(self) -> Kind:
        return self._recipe.kind

    @property
    def dtype(self) -> torch.dtype:
        return self._recipe.dtype

    def tensors(self) -> Sequence[Tensor]:
        return self._tensors

    def protect(self, storage: int) -> None:
        self.__init__(self._recipe.map(copied(storage)))  # type: ignore[misc]

    @property
    def value_held(self) -> bool:
        return self._recipe.value is not None

    @property
    def n_edges(self) -> int | None:
        return self._recipe.n_edges if isinstance(self._recipe, Edges) else None

    def __getstate__(self) -> Recipe:
        return self._recipe

    def __setstate__(self, recipe: Recipe) -> None:
        """A pickle or copy has its own versions."""
        self.__init__(recipe)  # type: ignore[misc]


class Layout(NamedTuple):
    """The layout of weights (batch, head, query, key) or values (batch, group, key, width).

    Each axis is one or more axes of the storage, as (size, stride), outermost first.
    """

    axes: tuple[tuple[tuple[int, int], ...], ...]
    offset: int

    @property
    def shape(self) -> Shape:
        return Shape(*(math.prod(size for size, _ in axis) for axis in self.axes))

    def view(self, tensor: Tensor) -> Tensor:
        """The weights in the storage of `tensor`."""
        flat = [factor for axis in self.axes for factor in axis]
        sizes, strides = [size for size, _ in flat], [stride for _, stride in flat]
        return tensor.as_strided(sizes, strides, self.offset).reshape(self.shape)

    def copied(self, tensor: Tensor) -> tuple[Tensor, Layout]:
        """A copy of the view, and its layout."""
        copy = self.view(tensor).clone()
        axes = tuple(((size, stride),) for size, stride in zip(copy.shape, copy.stride()))
        return copy, Layout(axes, 0)


class StoredWeights(StoredAttention):
    """A matrix that the model computed itself, in its own memory."""

    def __init__(
        self,
        tensor: Tensor,
        layout: Layout,
        kind: Kind,
        value: tuple[Tensor, Layout] | None = None,
        grid: tuple[int, int] | None = None,
    ) -> None:
        self._tensor, self._layout, self._kind, self._value = tensor, layout, kind, value
        self._grid = grid
        self._versions = versions(self.tensors())

    def recipe(self) -> Recipe:
        check_versions(self.tensors(), self._versions)
        value = None if self._value is None else self._value[1].view(self._value[0])
        return Given(self._layout.view(self._tensor), value, self._kind, self._grid)

    @property
    def shape(self) -> Shape:
        return self._layout.shape

    @property
    def kind(self) -> Kind:
        return self._kind

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self._tensor.dtype, torch.float32)

    def tensors(self) -> Sequence[Tensor]:
        return [self._tensor] if self._value is None else [self._tensor, self._value[0]]

    def protect(self, storage: int) -> None:
        if self._tensor.untyped_storage()._cdata == storage:
            self._tensor, self._layout = self._layout.copied(self._tensor)
        if self._value is not None and self._value[0].untyped_storage()._cdata == storage:
            self._value = self._value[1].copied(self._value[0])
        self._versions = versions(self.tensors())

    @property
    def value_held(self) -> bool:
        return self._value is not None


def weights_of(recipe: Recipe) -> Recipe:
    """A recipe of weights alone: edges as edges, others as a matrix."""
    if isinstance(recipe, Edges):
        return replace(recipe, value=None)
    return Given(recipe.weights(), None, recipe.kind, recipe.grid)


def detached(tensor: Tensor) -> Tensor:
    """A tensor outside the graph that shares the version counter of the original.

    Below autograd, where a capture runs, a plain `detach` would start a new counter.
    """
    if not tensor.requires_grad:
        return tensor
    key, tls = torch._C.DispatchKey.ADInplaceOrView, torch._C
    before = tls._dispatch_tls_is_dispatch_key_excluded(key)
    tls._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        return tensor.detach()
    finally:
        tls._dispatch_tls_set_dispatch_key_excluded(key, before)


def copied(storage: int) -> Callable[[Tensor], Tensor]:
    """A function that copies tensors in this storage, and returns others unchanged."""

    def change(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.untyped_storage()._cdata == storage else tensor

    return change


def versions(held: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in held)


def check_versions(held: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Raise if a stored tensor was changed in place after it was recorded."""
    for tensor, version in zip(held, versions):
        if version >= 0 and tensor._version != version:
            raise StateError(
                f"a tensor of this record, {tuple(tensor.shape)}, was changed in place after it "
                "was recorded; ask for the weights before, or capture with keep='weights'"
            )


def storage_bytes(held: Sequence[Tensor]) -> dict[int, int]:
    """Bytes of each storage, by its address; shared ones appear once."""
    storages = [tensor.untyped_storage() for tensor in held]
    return {storage._cdata: storage.nbytes() for storage in storages}
