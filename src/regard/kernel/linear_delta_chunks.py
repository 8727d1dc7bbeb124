"""Memories that are written key by key and read by queries: in chunks, and one step.

The truth is the recurrence, one key after another (`additive_step`, `delta_step`). Chunks give the
same numbers with matrix products: inside a chunk every query meets every key, and what lies before
it is in the memory that it starts from. Time and memory grow with the length alone.

| here         | meaning                                       | shape                            |
|--------------|-----------------------------------------------|----------------------------------|
| `memory`     | S, what has been written                      | (matrix, features, value width)  |
| `normaliser` | z = Σ key, for rows that sum to 1             | (matrix, features)               |
| `strength`   | β, how far a key replaces what is held for it | (matrix, key)                    |
| `log_decay`  | log α, applied before each key is written     | (matrix, key)                    |

A matrix is one head of one example. Decays are logarithms, and a chunk takes differences of their
sums: ratios of products would be 0 / 0 as soon as one underflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UnavailableError
from regard.recipe import Linear, Recurrent
from regard.recipe.linear import CHUNK, decays, divided
from regard.softmax import autocasting, exp
from regard.types import Mixed

Rows = Float[Tensor, "matrix query features"]
KeyRows = Float[Tensor, "matrix key features"]
ValueRows = Float[Tensor, "matrix key value_width"]
PerKey = Float[Tensor, "matrix key"]


class Store(NamedTuple):
    """A memory, and the sum of its keys where rows are normalised."""

    memory: Float[Tensor, "matrix features value_width"]
    normaliser: Float[Tensor, "matrix features"] | None = None


class Reading(NamedTuple):
    """What the queries of a recipe read, and the store after its last key, by batch and head."""

    output: Mixed
    memory: Float[Tensor, "batch head features value_width"]
    normaliser: Float[Tensor, "batch head features"] | None


def recur(recipe: Recurrent) -> Reading:
    """Write every key of a recipe and read for every query, chunk by chunk."""
    if recipe.value is None:
        raise UnavailableError("this recipe was made without values: there is nothing to read")
    dtype = recipe.value.dtype  # features may be finer than the values, as random ones are
    if not autocasting(recipe.device):
        return read_memory(recipe, dtype)
    with torch.autocast(recipe.device.type, enabled=False):
        return read_memory(recipe, dtype)


def read_memory(recipe: Recurrent, dtype: torch.dtype) -> Reading:
    """`recur` outside autocast, its output in `dtype`."""
    batch, heads, queries, keys = recipe.shape
    query, value = recipe.query.to(recipe.dtype).flatten(0, 1), recipe.values().flatten(0, 1)
    key, strength, log_decay = (
        None if part is None else part.flatten(0, 1) for part in recipe.written()
    )
    assert key is not None
    store = _start(recipe, value.shape[2])

    def write(store: Store, columns: slice, query: Tensor | None) -> tuple[Tensor | None, Store]:
        decay = None if log_decay is None else log_decay[:, columns]
        if strength is None:
            return additive_chunk(store, query, key[:, columns], value[:, columns], decay)
        beta = strength[:, columns]
        return delta_chunk(store, query, key[:, columns], value[:, columns], beta, decay)

    before = keys - queries if recipe.causal else keys  # keys in front of the first query
    joined = _Joined(query, value.shape[2])
    if before < 0:
        joined.add(read(store, query[:, :-before]))
    for columns in _chunks(0, max(0, before)):
        _, store = write(store, columns, None)
    if not recipe.causal:
        joined.add(read(store, query))
    else:
        for columns in _chunks(max(0, before), keys):
            rows = slice(columns.start - before, columns.stop - before)
            output, store = write(store, columns, query[:, rows])
            assert output is not None
            joined.add(output)
    apart = (batch, heads)
    normaliser = None if store.normaliser is None else store.normaliser.unflatten(0, apart)
    mixed = joined.output()  # by this name `tracing.delta_rule` knows the end of a reading
    return Reading(
        mixed.unflatten(0, apart).to(dtype),
        store.memory.unflatten(0, apart),
        normaliser,
    )


class _Joined:
    """Outputs of consecutive rows as one: written where they belong, or put together at the end
    where a graph is recorded, which does not want its tensors written to."""

    def __init__(self, query: Tensor, width: int) -> None:
        self._parts: list[Tensor] = []
        self._rows, self._whole = 0, query.new_empty(*query.shape[:2], width)
        self._recorded = torch.is_grad_enabled() or torch.compiler.is_compiling()

    def add(self, output: Tensor) -> None:
        if self._recorded:
            self._parts.append(output)
        else:
            self._whole[:, self._rows : self._rows + output.shape[1]] = output
            self._rows += output.shape[1]

    def output(self) -> Tensor:
        return torch.cat(self._parts, dim=1) if self._parts else self._whole


def _start(recipe: Recurrent, width: int) -> Store:
    """The store before the first key."""
    batch, heads, features = *recipe.shape[:2], recipe.query.shape[3]
    normalised = isinstance(recipe, Linear) and recipe.normalised
    normaliser = recipe.normaliser if isinstance(recipe, Linear) else None
    if recipe.memory is not None:
        return Store(
            recipe.memory.to(recipe.dtype).flatten(0, 1),
            None if normaliser is None else normaliser.to(recipe.dtype).flatten(0, 1),
        )
    zeros = torch.zeros(1, dtype=recipe.dtype, device=recipe.device)
    return Store(
        zeros.new_zeros(batch * heads, features, width),
        zeros.new_zeros(batch * heads, features) if normalised else None,
    )


def _chunks(start: int, stop: int) -> Iterator[slice]:
    """Consecutive chunks; one of any length in an exported graph whose length is a symbol."""
    if torch.compiler.is_exporting() and not _is_static(stop - start):
        yield slice(start, stop)
        return
    count = -(-(stop - start) // CHUNK)  # a compiled graph serves all lengths of as many chunks
    for index in range(count):
        first = start + index * CHUNK
        yield slice(first, stop if index == count - 1 else first + CHUNK)


def _is_static(length: int) -> bool:
    """Whether a length is a number, not a symbol of an exported graph."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # slow to import

    return has_static_value(length)


def read(store: Store, query: Rows) -> Float[Tensor, "matrix query value_width"]:
    """What queries read of a memory that stays as it is."""
    output = torch.bmm(query, store.memory)
    if store.normaliser is None:
        return output
    return divided(output, (query * store.normaliser[:, None]).sum(-1, keepdim=True))


def additive_step(
    store: Store,
    query: Rows | None,
    key: KeyRows,
    value: ValueRows,
    log_decay: PerKey | None = None,
) -> tuple[Tensor | None, Store]:
    """S ← α S + key ⊗ value, z ← α z + key; then read. One key, one query or none."""
    memory, normaliser = store
    if log_decay is not None:
        memory = memory * exp(log_decay[..., None])
        normaliser = None if normaliser is None else normaliser * exp(log_decay)
    store = Store(
        torch.baddbmm(memory, key.mT, value), None if normaliser is None else normaliser + key[:, 0]
    )
    return None if query is None else read(store, query), store


def delta_step(
    store: Store,
    query: Rows | None,
    key: KeyRows,
    value: ValueRows,
    strength: PerKey,
    log_decay: PerKey | None = None,
) -> tuple[Tensor | None, Store]:
    """S ← α S, S ← S + β key ⊗ (value − key · S); then read. One key, one query or none."""
    memory = store.memory if log_decay is None else store.memory * exp(log_decay[..., None])
    change = (value - torch.bmm(key, memory)) * strength[..., None]
    store = Store(torch.baddbmm(memory, key.mT, change))
    return None if query is None else read(store, query), store


def additive_chunk(
    store: Store,
    query: Rows | None,
    key: KeyRows,
    value: ValueRows,
    log_decay: PerKey | None = None,
) -> tuple[Tensor | None, Store]:
    """As many steps as there are keys, with products of matrices."""
    if key.shape[1] == 1:
        return additive_step(store, query, key, value, log_decay)
    chunk = _Chunk.of(query, key, log_decay)
    output = None
    if query is not None:
        assert chunk.query is not None and chunk.products is not None
        output = torch.bmm(chunk.query, store.memory).baddbmm_(chunk.products, value)
        if store.normaliser is not None:
            earlier = (chunk.query * store.normaliser[:, None]).sum(-1, keepdim=True)
            output = divided(output, chunk.products.sum(-1, keepdim=True) + earlier)
    return output, chunk.written(store, value)


def delta_chunk(
    store: Store,
    query: Rows | None,
    key: KeyRows,
    value: ValueRows,
    strength: PerKey,
    log_decay: PerKey | None = None,
) -> tuple[Tensor | None, Store]:
    """As many steps as there are keys, with products of matrices and one triangular solve.

    The change that key i makes is strength_i (value_i − key_i · S before it), and S before it holds
    the changes of earlier keys of the chunk: (1 + L) changes = strength (value − key · S), where
    L_ij = strength_i key_i · key_j decay_ij below the diagonal.
    """
    if key.shape[1] == 1:
        return delta_step(store, query, key, value, strength, log_decay)
    chunk = _Chunk.of(query, key, log_decay)
    stronger = key * strength[..., None]
    below = torch.bmm(stronger, key.mT).tril_(-1)
    if chunk.decays is not None:
        below = below * chunk.decays
    held = torch.bmm(chunk.faded(stronger), store.memory)
    wanted = value * strength[..., None] - held
    change = torch.linalg.solve_triangular(  # transposed, as LAPACK has columns: no copies
        below.mT, wanted.mT, upper=True, left=False, unitriangular=True
    ).mT
    output = None
    if query is not None:
        assert chunk.query is not None and chunk.products is not None
        output = torch.bmm(chunk.query, store.memory).baddbmm_(chunk.products, change)
    return output, chunk.written(store, change)


class _Chunk(NamedTuple):
    """What queries and keys of a chunk are to each other, decay included."""

    key: Tensor
    query: Tensor | None  # faded by what the memory loses until it is read
    products: Tensor | None  # (matrix, query, key), 0 above the diagonal
    sums: Tensor | None  # of log-decays up to each key
    decays: Tensor | None  # (matrix, key, key)

    @classmethod
    def of(cls, query: Tensor | None, key: Tensor, log_decay: Tensor | None) -> _Chunk:
        products = None if query is None else torch.bmm(query, key.mT).tril_()
        if log_decay is None:
            return cls(key, query, products, None, None)
        sums = log_decay.cumsum(-1)
        between = decays(sums)
        chunk = cls(key, None, products if products is None else products * between, sums, between)
        return chunk if query is None else chunk._replace(query=chunk.faded(query))

    def faded(self, rows: Tensor) -> Tensor:
        """Rows that read the memory from before the chunk, each at its own position."""
        return rows if self.sums is None else rows * exp(self.sums[..., None])

    def written(self, store: Store, changes: Tensor) -> Store:
        """The store after the chunk."""
        (memory, normaliser), key = store, self.key
        if self.sums is not None:
            last = self.sums[:, -1:]
            key = key * exp(last - self.sums)[..., None]
            memory = memory * exp(last[..., None])
            normaliser = None if normaliser is None else normaliser * exp(last)
        return Store(
            torch.baddbmm(memory, key.mT, changes),
            None if normaliser is None else normaliser + key.sum(1),
        )
