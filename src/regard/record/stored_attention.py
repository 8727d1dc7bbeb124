"""What a record holds of an attention: references to the model's own tensors, not copies.

A recipe is made from them when it is asked for, outside the model's run, so that it can be part
of the autograd graph and costs nothing until then.
"""

from __future__ import annotations

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
    """A recipe, or what one is made from."""

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
        """Tensors that no record before this one holds."""
        return self.tensors()

    @abstractmethod
    def protect(self, storage: int) -> None:
        """Copy what lives in this storage, which is about to be changed in place."""

    @property
    def value_held(self) -> bool:
        return False

    @property
    def n_edges(self) -> int | None:
        """Edges of one matrix, where weights are a list of them."""
        return None


class StoredRecipe(StoredAttention):
    """A finished recipe, with the version of each tensor when it was taken."""

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
        """What was pickled or copied has versions of its own."""
        self.__init__(recipe)  # type: ignore[misc]


class Layout(NamedTuple):
    """How weights (batch, head, query, key) or values (batch, group, key, width) lie in a storage.

    Each axis is one or more axes of the storage, (size, stride) outermost first.
    """

    axes: tuple[tuple[tuple[int, int], ...], ...]
    offset: int

    @property
    def shape(self) -> Shape:
        sizes = []
        for parts in self.axes:
            size = 1
            for length, _ in parts:
                size *= length
            sizes.append(size)
        return Shape(*sizes)

    def view(self, tensor: Tensor) -> Tensor:
        """The weights in the storage of `tensor`."""
        flat = [part for parts in self.axes for part in parts]
        found = tensor.as_strided(
            [size for size, _ in flat], [stride for _, stride in flat], self.offset
        )
        return found.reshape(self.shape)

    def copied(self, tensor: Tensor) -> tuple[Tensor, Layout]:
        """A copy of what lies there, and how it lies in that."""
        made = self.view(tensor).clone()
        axes = tuple(((size, stride),) for size, stride in zip(made.shape, made.stride()))
        return made, Layout(axes, 0)


class StoredWeights(StoredAttention):
    """A matrix the model made itself, where it lies."""

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
    """The recipe that holds weights and nothing else: edges as they are, others as a matrix."""
    if isinstance(recipe, Edges):
        return replace(recipe, value=None)
    return Given(recipe.weights(), None, recipe.kind, recipe.grid)


def detached(tensor: Tensor) -> Tensor:
    """A tensor outside the graph that still knows when the original is changed in place.

    Below autograd, where a capture runs, a plain `detach` would count its changes anew.
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
    """A function that copies a tensor which lies in this storage, and leaves others as they are."""

    def change(tensor: Tensor) -> Tensor:
        return tensor.clone() if tensor.untyped_storage()._cdata == storage else tensor

    return change


def versions(held: Sequence[Tensor]) -> tuple[int, ...]:
    return tuple(-1 if tensor.is_inference() else tensor._version for tensor in held)


def check_versions(held: Sequence[Tensor], versions: Sequence[int]) -> None:
    """Raise where a held tensor was changed in place after it was recorded."""
    for tensor, version in zip(held, versions):
        if version >= 0 and tensor._version != version:
            raise StateError(
                f"a tensor of this record, {tuple(tensor.shape)}, was changed in place after it "
                "was recorded; ask for the weights before, or capture with keep='weights'"
            )


def storage_bytes(held: Sequence[Tensor]) -> dict[int, int]:
    """Bytes of each storage kept alive, by its address; shared ones appear once."""
    found = {}
    for tensor in held:
        storage = tensor.untyped_storage()
        found[storage._cdata] = storage.nbytes()
    return found
