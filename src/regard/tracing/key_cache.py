"""Keys of a cache: each call keeps its new keys only.

A cache gives every step a tensor of all keys so far; holding each would take memory with the
square of the length. The old keys are compared with those of the call before (also in another
order, as beam search leaves them), so nothing is assumed about how the cache works. A cache of a
fixed size that is written in place is copied once, and then each change is kept.
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


class KeyChunks:
    """New keys of each call, and the order in which a call found the examples before."""

    def __init__(self, keys: Tensor) -> None:
        self.chunks = [keys]
        self.orders: list[Tensor | None] = [None]
        self.versions = versions(self.chunks)  # later chunks are our own

    def keys(self, calls: int) -> Tensor:
        """All keys of the first `calls` calls, (batch, group, key, width)."""
        check_versions(self.chunks, self.versions)
        parts, order = [self.chunks[calls - 1]], self.orders[calls - 1]
        for index in range(calls - 2, -1, -1):
            chunk = self.chunks[index]
            parts.append(chunk if order is None else chunk[order])
            before = self.orders[index]
            if before is not None:
                order = before if order is None else before[order]
        return torch.cat(parts[::-1], dim=2)


class _DotWithoutKeys(StoredAttention):
    """A dot-product recipe whose keys are kept somewhere else."""

    def __init__(self, dot: Dot) -> None:
        batch, groups, self._keys, width = dot.key.shape
        self._take(replace(dot, key=dot.key.new_empty(batch, groups, 0, width)))

    def _take(self, dot: Dot) -> None:
        self._dot, self._parts = dot, tensors(dot)
        self._versions = versions(self._parts)

    def _with(self, keys: Tensor) -> Recipe:
        check_versions(self._parts, self._versions)
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
    """A recipe whose keys are the first calls of a chain."""

    def __init__(self, dot: Dot, chain: KeyChunks) -> None:
        super().__init__(dot)
        self._chain, self._calls = chain, len(chain.chunks)

    def recipe(self) -> Recipe:
        return self._with(self._chain.keys(self._calls))

    @property
    def reordered(self) -> bool:
        """Whether examples changed places between calls, as beams do."""
        return any(order is not None for order in self._chain.orders[: self._calls])

    def tensors(self) -> Sequence[Tensor]:
        return [*self._parts, *self._chain.chunks[: self._calls]]

    def own(self) -> Sequence[Tensor]:
        return [*self._parts, self._chain.chunks[self._calls - 1]]

    def protect(self, storage: int) -> None:
        super().protect(storage)
        self._chain.chunks = [copied(storage)(part) for part in self._chain.chunks]
        self._chain.versions = versions(self._chain.chunks[:1])


class KeyLedger:
    """Keys of a cache that is written in place: what they are now, and what each call changed."""

    def __init__(self, keys: Tensor) -> None:
        self.now = keys.clone()
        self.undo: list[tuple[int, Tensor, Tensor]] = []  # length, places, what was there before

    def fits(self, keys: Tensor) -> bool:
        """Whether these may be the same keys later on: as many, or more."""
        return self.now.shape[:2] == keys.shape[:2] and self.now.shape[2] <= keys.shape[2]

    def take(self, keys: Tensor) -> None:
        """The next call's keys."""
        length = self.now.shape[2]
        places = (keys[:, :, :length] != self.now).any(3).any(1).any(0).nonzero()[:, 0]
        self.undo.append((length, places, self.now[:, :, places]))
        self.now[:, :, places] = keys[:, :, places]
        if keys.shape[2] > length:
            self.now = torch.cat([self.now, keys[:, :, length:]], dim=2)

    def keys(self, changes: int) -> Tensor:
        """The keys after that many changes."""
        found = self.now.clone()
        for length, places, before in reversed(self.undo[changes:]):
            found = found[:, :, :length]
            found[:, :, places] = before
        return found


class LedgerKeys(_DotWithoutKeys):
    """A recipe whose keys lie in a ledger."""

    def __init__(self, dot: Dot, ledger: KeyLedger) -> None:
        super().__init__(dot)
        self._ledger, self._changes = ledger, len(ledger.undo)

    def recipe(self) -> Recipe:
        return self._with(self._ledger.keys(self._changes))

    def tensors(self) -> Sequence[Tensor]:
        return [*self._parts, self._ledger.now, *(old for _, _, old in self._ledger.undo)]

    def own(self) -> Sequence[Tensor]:
        return [*self._parts, *(old for _, _, old in self._ledger.undo[-1:])]


class KeyCaches:
    """What each site's keys were at its last call."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Tensor, KeyChunks]] = {}
        self._ledgers: dict[str, KeyLedger] = {}

    def written(self, site: str, dot: Dot) -> LedgerKeys:
        """The recipe of a site whose keys lie in a cache that is written in place."""
        ledger = self._ledgers.get(site)
        if ledger is not None and ledger.fits(dot.key):
            ledger.take(dot.key)
        else:
            ledger = self._ledgers[site] = KeyLedger(dot.key)
        return LedgerKeys(dot, ledger)

    def held(self, site: str, dot: Dot) -> StoredAttention | None:
        """The recipe without the keys that the call before had already; None where it has none."""
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
        """A site's last record was dropped: keep nothing for its sake."""
        self._ledgers.pop(site, None)
        last = self._last.pop(site, None)
        if last is not None and len(last[1].chunks) > 1:
            last[1].chunks.pop()
            last[1].orders.pop()

    def forget(self, target: Tensor) -> None:
        """Keys that lie there are about to be overwritten: nothing can be compared with them."""
        for site, last in list(self._last.items()):
            if _share(last[0], target):
                del self._last[site]

    def clear(self) -> None:
        self._last.clear()
        self._ledgers.clear()


def _another_copy(now: Tensor, before: Tensor) -> bool:
    """Whether these are as many keys in other memory: a cache of a fixed size, copied."""
    return now.shape == before.shape and not _share(now, before)


def _share(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie in one storage."""
    address = storage_address(one)
    return address is not None and address == storage_address(other)


def order_of(now: Tensor, before: Tensor) -> Tensor | Literal[False] | None:
    """Which example of `before` each one of `now` is: None the same, False none."""
    if torch.equal(now, before):
        return None
    found = []
    for example in now:
        for index, old in enumerate(before):
            if torch.equal(example, old):
                found.append(index)
                break
        else:
            return False
    return torch.tensor(found, device=now.device)
