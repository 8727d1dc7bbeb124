"""The tags of one capture: kept with the storages that they describe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import Tensor

from regard.tracing.axes import Dims, Origin, dims_of, fresh_dims, laid_out, with_slices
from regard.tracing.movement import Start, View
from regard.tracing.tags import Box, Sources, Tag, covers, storage_address

_captures = itertools.count(1)


class Tagging:
    """Tags of one capture, by storage."""

    def __init__(self, graph: bool) -> None:
        self.key = f"regard_{next(_captures)}"
        self.operator = ""  # that is being followed
        self.graph = graph  # whether weights before dropout stay in the autograd graph
        self.boxes: WeakSet[Box] = WeakSet()
        self._choices: WeakKeyDictionary[Any, dict[int, set[Origin]]] = WeakKeyDictionary()
        self._tagged: list[ref[Any]] = []  # storages with a tag, to be cleaned up
        self._prune_at = 1 << 12

    def tag(self, tensor: Tensor) -> Tag | None:
        """What is known about a tensor's storage."""
        try:
            tag: Tag | None = tensor.untyped_storage().__dict__.get(self.key)
        except RuntimeError:  # sparse, nested or functional tensors
            return None
        return tag

    def put(self, tensor: Tensor, tag: Tag) -> None:
        try:
            storage = tensor.untyped_storage()
        except RuntimeError:  # sparse, nested or functional tensors
            return
        tags = storage.__dict__
        before = tags.get(self.key)
        if before is None:
            self._tagged.append(ref(storage))
            if len(self._tagged) > self._prune_at:
                self._tagged = [there for there in self._tagged if there() is not None]
                self._prune_at = max(self._prune_at, 2 * len(self._tagged))
        elif before.parameter and not tag.written:
            return
        tags[self.key] = tag

    def forget(self, tensor: Tensor) -> None:
        """Nothing is known any more about a storage."""
        if self.tag(tensor) is not None:
            tensor.untyped_storage().__dict__.pop(self.key, None)

    def constants(self, tensors: Sequence[Tensor]) -> None:
        """Parameters and buffers; forgotten again by `clear`."""
        for outer in tensors:
            for tensor in plain_tensors(outer):
                if tensor.layout == torch.strided:
                    tag = Tag()
                    tag.constant = tag.parameter = True
                    self.put(tensor, tag)

    def clear(self) -> None:
        """Take every tag away, also from storages that live on, and let go of every tensor."""
        for there in self._tagged:
            storage = there()
            if storage is not None:
                storage.__dict__.pop(self.key, None)
        self._tagged.clear()
        self._choices.clear()
        for box in list(self.boxes):
            box.tensor = None

    def box(self, tensor: Tensor, dims: Dims | None = None) -> Box:
        """A tensor as it is now: copied before the model changes it."""
        box = Box(tensor, dims or [])
        self.boxes.add(box)
        return box

    def protect(self, target: Tensor) -> None:
        """A storage is about to change: what boxes hold of it is copied."""
        address = storage_address(target) if self.boxes else None
        if address is None:
            return
        for box in list(self.boxes):
            held = box.tensor
            if held is not None and storage_address(held) == address:
                fresh = torch.empty(0, dtype=held.dtype, device=held.device)
                storage = held.untyped_storage().clone()
                box.tensor = fresh.set_(storage, held.storage_offset(), held.shape, held.stride())

    def sources(self, tensor: Tensor) -> Sources:
        """The inputs a tensor comes from by linear maps; itself where there are none."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        return tag.sources or frozenset((tag.same_as or tag.number,))

    def token(self, tensor: Tensor) -> int:
        """A number that stands for this very tensor, or for the one it is a copy of."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        return tag.same_as or tag.number

    def constant(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.constant

    def dims(self, tensor: Tensor) -> Dims:
        """What each dimension of a tensor is made of; of an unknown one, axes of its own."""
        tag = self.tag(tensor)
        if tag is None:
            tag = Tag()
            self.put(tensor, tag)
        if tag.factors is None:
            dims = fresh_dims(tensor, "parameter" if tag.constant else "data")
            tag.factors = laid_out(dims, tensor)
            return dims
        return dims_of(tensor, tag.factors)

    def sliced_dims(self, tensor: Tensor) -> Dims:
        """The same, where slices are axes of their own; not of scores, weights and caches."""
        dims, tag = self.dims(tensor), self.tag(tensor)
        if tag is None or tag.factors is None or covers(tensor) or tag.written:
            return dims
        if tag.sides is not None or tag.mark is not None or tag.log is not None or tag.exp:
            return dims
        return with_slices(tensor, dims, tag.factors)

    def chosen_from(self, index: Tensor) -> set[Origin]:
        """The axes from which an index of edges chose; to be added to.

        An index is a part of a storage that begins at an offset, as a row of an edge list is.
        """
        by_offset = self._choices.setdefault(index.untyped_storage(), {})
        return by_offset.setdefault(int(index.storage_offset()), set())

    def view(self, tensor: Tensor) -> View:
        """Where the entries of a tensor lie, and how they came there."""
        self.dims(tensor)
        tag = self.tag(tensor)
        assert tag is not None and tag.factors is not None
        item = tensor.element_size()
        size = tensor.untyped_storage().nbytes() // item
        factors = () if tag.written else tag.factors  # written in parts: nobody knows from where
        return View.of(tensor, tag.moved or Start(factors, item, size))

    def is_moved(self, tensor: Tensor) -> bool:
        """Whether entries were gathered or taken from windows."""
        tag = self.tag(tensor)
        return tag is not None and tag.moved is not None

    def is_zero(self, tensor: Tensor) -> bool:
        """Whether a tensor was made as zeros."""
        tag = self.tag(tensor)
        return tag is not None and tag.zero

    def is_weights(self, tensor: Tensor) -> bool:
        tag = self.tag(tensor)
        return tag is not None and tag.mark is not None


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, or those inside a wrapper: of quantised and of sharded parameters."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):
                yield from plain_tensors(inner)
    else:
        yield tensor


def local_tensor(tensor: Tensor) -> Tensor:
    """The tensor inside a wrapper that holds one, as a shard does; else the tensor itself."""
    inside = list(plain_tensors(tensor))
    return inside[0] if len(inside) == 1 else tensor
