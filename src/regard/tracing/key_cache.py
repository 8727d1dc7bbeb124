"""Keys of a cache: each call stores its new keys only.

A cache gives every step a tensor of all keys so far; holding each would take memory quadratic in
the length. The old keys are compared with those of the previous call, also in another order, as
after beam search; nothing is assumed about how the cache works. A cache of fixed size that is
written in place is copied once, and then each change is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from regard.recipe import Dot, Recipe, tensors
from regard.record.stored_attention import StoredAttention, check_versions, copied, versions
from regard.tracing.dataflow.tags import storage_address
from regard.types import Kind, Shape


def example_orders(orders: Sequence[Tensor | None]) -> list[tuple[int, Tensor | None]]:
    """For each call the order that brings its examples into that of the last call."""
    result: list[tuple[int, Tensor | None]] = []
    order: Tensor | None = None
    for call in reversed(range(len(orders))):
        result.append((call, order))
        before = orders[call]
        if before is not None:
            order = before if order is None else before[order]
    return result[::-1]


class KeyChunks:
    """The new keys of each call, and the order of its examples among those of the call before."""

    def __init__(self, keys: Tensor) -> None:
        self.chunks = [keys]
        self.orders: list[Tensor | None] = [None]
        self.versions = versions(self.chunks)  # later chunks are our own

    def keys(self, calls: int) -> Tensor:
        """All keys of the first `calls` calls, (batch, group, key, width)."""
        check_versions(self.chunks, self.versions)
        chunks = [
            self.chunks[call] if order is None else self.chunks[call][order]
            for call, order in example_orders(self.orders[:calls])
        ]
        return torch.cat(chunks, dim=2)


class _DotWithoutKeys(StoredAttention):
    """A dot-product recipe whose keys are stored elsewhere."""

    def __init__(self, dot: Dot) -> None:
        batch, groups, self._keys, width = dot.key.shape
        self._take(replace(dot, key=dot.key.new_empty(batch, groups, 0, width)))

    def _take(self, dot: Dot) -> None:
        self._dot, self._tensors = dot, tensors(dot)
        self._versions = versions(self._tensors)

    def _with(self, keys: Tensor) -> Recipe:
        check_versions(self._tensors, self._versions)
        return replace(self._dot, key=keys)

    @property
    def shape(self) -> Shape:
        batch, heads, queries, _ = self._dot.query.shape
        return Shape(batch, heads, queries, self._keys)

    @property
    def kind(self) -> Kind:
        return self._dot.kind

    @property
    def dtype(self) -> torch.dtype:
        return self._dot.dtype

    def protect(self, storage: int) -> None:
        self._take(self._dot.map(copied(storage)))


class GrowingKeys(_DotWithoutKeys):
    """A recipe whose keys are the first chunks of a growing cache."""

    def __init__(self, dot: Dot, chain: KeyChunks) -> None:
        super().__init__(dot)
        self._chain, self._calls = chain, len(chain.chunks)

    def recipe(self) -> Recipe:
        return self._with(self._chain.keys(self._calls))

    @property
    def reordered(self) -> bool:
        """Whether examples were reordered between calls, as beams are."""
        return any(order is not None for order in self._chain.orders[: self._calls])

    def tensors(self) -> Sequence[Tensor]:
        return [*self._tensors, *self._chain.chunks[: self._calls]]

    def own(self) -> Sequence[Tensor]:
        return [*self._tensors, self._chain.chunks[self._calls - 1]]

    def protect(self, storage: int) -> None:
        super().protect(storage)
        self._chain.chunks = [copied(storage)(chunk) for chunk in self._chain.chunks]
        self._chain.versions = versions(self._chain.chunks[:1])


class KeyLedger:
    """Keys of a cache that is written in place: the present ones, and what each call changed."""

    def __init__(self, keys: Tensor) -> None:
        self.now = keys.clone()
        self.undo: list[tuple[int, Tensor, Tensor]] = []  # length, positions, their former keys

    def fits(self, keys: Tensor) -> bool:
        """Whether these may be the same cache later: as many keys, or more."""
        return self.now.shape[:2] == keys.shape[:2] and self.now.shape[2] <= keys.shape[2]

    def take(self, keys: Tensor) -> None:
        """Take the keys of the next call."""
        length = self.now.shape[2]
        positions = (keys[:, :, :length] != self.now).any(3).any(1).any(0).nonzero()[:, 0]
        self.undo.append((length, positions, self.now[:, :, positions]))
        self.now[:, :, positions] = keys[:, :, positions]
        if keys.shape[2] > length:
            self.now = torch.cat([self.now, keys[:, :, length:]], dim=2)

    def keys(self, changes: int) -> Tensor:
        """The keys after that many changes."""
        keys = self.now.clone()
        for length, positions, before in reversed(self.undo[changes:]):
            keys = keys[:, :, :length]
            keys[:, :, positions] = before
        return keys


class LedgerKeys(_DotWithoutKeys):
    """A recipe whose keys are in a ledger."""

    def __init__(self, dot: Dot, ledger: KeyLedger) -> None:
        super().__init__(dot)
        self._ledger, self._changes = ledger, len(ledger.undo)

    def recipe(self) -> Recipe:
        return self._with(self._ledger.keys(self._changes))

    def tensors(self) -> Sequence[Tensor]:
        return [*self._tensors, self._ledger.now, *(old for _, _, old in self._ledger.undo)]

    def own(self) -> Sequence[Tensor]:
        return [*self._tensors, *(old for _, _, old in self._ledger.undo[-1:])]


class KeyCaches:
    """The keys of each site at its last call."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Tensor, KeyChunks]] = {}
        self._ledgers: dict[str, KeyLedger] = {}

    def written(self, site: str, dot: Dot) -> LedgerKeys:
        """The recipe of a site whose cache is written in place."""
        ledger = self._ledgers.get(site)
        if ledger is not None and ledger.fits(dot.key):
            ledger.take(dot.key)
        else:
            ledger = self._ledgers[site] = KeyLedger(dot.key)
        return LedgerKeys(dot, ledger)

    def held(self, site: str, dot: Dot) -> StoredAttention | None:
        """The recipe without the keys of the previous call; None if there are none."""
        key = dot.key
        if site in self._ledgers and self._ledgers[site].fits(key):
            return self.written(site, dot)
        last = self._last.get(site)
        if last is not None and _another_copy(key, last[0]) and key.shape[2] > dot.query.shape[2]:
            return self.written(site, dot)
        if last is not None and key.shape[2] > dot.query.shape[2]:
            before, chain = last
            old = before.shape[2]
            grew = key.shape[2] > old and key.shape[0] == before.shape[0]
            if grew and key.shape[1::2] == before.shape[1::2] and key.dtype == before.dtype:
                order = order_of(key[:, :, :old], before)
                if order is not False:
                    chain.chunks.append(key[:, :, old:].clone())
                    chain.orders.append(order)
                    self._last[site] = (key, chain)
                    return GrowingKeys(dot, chain)
        self._last[site] = (key, KeyChunks(key))
        return None

    def drop(self, site: str) -> None:
        """Forget a site whose last record was dropped."""
        self._ledgers.pop(site, None)
        last = self._last.pop(site, None)
        if last is not None and len(last[1].chunks) > 1:
            last[1].chunks.pop()
            last[1].orders.pop()

    def forget(self, target: Tensor) -> None:
        """Forget keys that are about to be overwritten."""
        for site, last in list(self._last.items()):
            if _share(last[0], target):
                del self._last[site]

    def clear(self) -> None:
        self._last.clear()
        self._ledgers.clear()


def _another_copy(now: Tensor, before: Tensor) -> bool:
    """Whether these are as many keys in other memory: a cache of fixed size, copied."""
    return now.shape == before.shape and not _share(now, before)


def _share(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors share a storage."""
    address = storage_address(left)
    return address is not None and address == storage_address(right)


def order_of(now: Tensor, before: Tensor) -> Tensor | Literal[False] | None:
    """The index in `before` of each example of `now`; None if unchanged, False if missing."""
    if torch.equal(now, before):
        return None
    order = []
    for example in now:
        for index, old in enumerate(before):
            if torch.equal(example, old):
                order.append(index)
                break
        else:
            return False
    return torch.tensor(order, device=now.device)
