"""Recipes of memories that are written key by key: `Linear` and `Delta`.

A memory S (features × value width) takes in one key after another, and a query reads it. What a
query reads is a sum of the values, and the coefficients of that sum are the implied weights. They
need no memory: a block of them is made from the queries and keys alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from regard.checks import check_axes
from regard.errors import MaskError, ShapeError
from regard.masks import Mask, clean
from regard.masks.parts import Band, Padding, Pairs, parts
from regard.recipe.base import QueryKeyRecipe, heads_of, per_head, span
from regard.softmax import exp, product
from regard.types import (
    Keys,
    Kind,
    Mixed,
    Queries,
    Values,
    Weights,
    pieces,
    register_pytree,
)

CHUNK = 64  # keys that are worked on together

PerKey = Float[Tensor, "batch head key"]
Memory = Float[Tensor, "batch head width memory_width"]

_This = TypeVar("_This", bound="Recurrent")


class Written(NamedTuple):
    """What is written into a memory, in the dtype of the weights and zero at padding."""

    key: Tensor  # (batch, head, key, features)
    strength: Tensor | None  # (batch, head, key)
    log_decay: Tensor | None  # (batch, head, key)

    def part(self, columns: slice) -> Written:
        """Some keys of it."""
        return Written(
            self.key[:, :, columns],
            None if self.strength is None else self.strength[..., columns],
            None if self.log_decay is None else self.log_decay[..., columns],
        )


class Recurrent(QueryKeyRecipe):
    """What `Linear` and `Delta` share: features, a decay, a mask of keys, an earlier memory."""

    query: Queries
    key: Keys
    log_decay: PerKey | None
    mask: Mask | None
    memory: Memory | None

    @abstractmethod
    def written(self) -> Written:
        """What the keys write."""

    @abstractmethod
    def read_earlier(self, rows: slice) -> Mixed | None:
        """What some queries read of the memory that was there before the keys; None: there was
        none."""

    def check(self) -> None:
        """Raise where the parts do not fit each other."""
        name = type(self).__name__
        if self.query.dim() != 4:
            raise ShapeError(
                f"{name}: query has {self.query.dim()} axes {tuple(self.query.shape)}, expected 4: "
                "(batch, head, query, features)"
            )
        batch, heads, _, width = self.query.shape
        keys = self.key.shape[2] if self.key.dim() == 4 else None
        groups = self.key.shape[1] if self.key.dim() == 4 and self.key.shape[1] else 1
        sides: dict[str, int | None] = {"batch": batch, "head": groups, "key": keys}
        per_key: dict[str, int | None] = {"batch": batch, "head": heads, "key": keys}
        held: dict[str, int | None] = {"batch": batch, "head": heads, "width": width}
        for part, axes in (
            ("key", sides | {"width": width}),
            ("value", sides | {"value width": None}),
            ("strength", per_key),
            ("log_decay", per_key),
            ("memory", held | {"value width": None}),
            ("normaliser", held),
        ):
            tensor = getattr(self, part, None)
            if tensor is not None:
                check_axes(f"{name}: {part}", tensor, axes)
        if heads % groups:
            raise ShapeError(
                f"{name}: key: axis head has size {groups}, expected a divisor of {heads}"
            )
        if isinstance(self.mask, Mask):
            key_mask(self.mask)

    @property
    def causal(self) -> bool:
        """Whether a query reads the memory as it was after its own position."""
        return key_mask(self.mask)[0]

    @property
    def keep(self) -> Bool[Tensor, "batch key"] | None:
        """Keys that are real; None where all are."""
        return key_mask(self.mask)[1]

    def mixed(self) -> Mixed:
        """Weights times values, and what is read of an earlier memory."""
        if torch.is_grad_enabled():
            return self._mixed(slice(0, self.shape.queries))
        strips = [self._mixed(rows) for rows in self._strips()]
        return torch.cat(strips, dim=2) if strips else self._mixed(slice(0, 0))

    def _mixed(self, rows: slice) -> Mixed:
        mixed, earlier = self.mix(self.weights(rows)), self.read_earlier(rows)
        return mixed if earlier is None else (mixed + earlier).to(mixed.dtype)

    def values(self) -> Values:
        """Values of every head, zero at padding."""
        return per_head(self._values(), self.shape.heads).to(self.dtype)

    def _values(self) -> Values:
        return clean(super()._values(), None if self.keep is None else self.keep[:, None])

    def of_heads(self: _This, which: Sequence[int]) -> _This:
        heads = self.shape.heads
        return self._changed(
            lambda tensor: heads_of(tensor, which, heads),
            None if self.mask is None else self.mask.of_heads(which),
        )

    def at(self: _This, batch: int, head: int) -> _This:
        def matrix(tensor: Tensor) -> Tensor:
            group = head // (self.shape.heads // tensor.shape[1])
            return tensor[batch : batch + 1, group : group + 1]

        return self._changed(matrix, None if self.mask is None else self.mask.at(batch, head))

    def _changed(self: _This, change: Any, mask: Mask | None) -> _This:
        changed: _This = replace(self, mask=None).map(change)  # type: ignore[type-var]
        return replace(changed, mask=mask)  # type: ignore[type-var]

    def _written(self, strength: Tensor | None) -> Written:
        heads, alive = self.shape.heads, None if self.keep is None else self.keep[:, None]
        key = per_head(clean(self.key, alive), heads).to(self.dtype)
        numbers = [
            None if number is None else _per_key(number, alive).to(self.dtype)
            for number in (strength, self.log_decay)
        ]
        return Written(key, *numbers)

    def _ends(self, rows: slice) -> Tensor:
        """The last key that each of these queries reads, -1 where there is none yet, (query,)."""
        _, _, queries, keys = self.shape
        if not self.causal:
            return torch.full((rows.stop - rows.start,), keys - 1, device=self.device)
        positions = torch.arange(rows.start, rows.stop, device=self.device)
        return (positions + (keys - queries)).clamp_min(-1)


def _per_key(numbers: PerKey, alive: Bool[Tensor, "#batch 1 key"] | None) -> Tensor:
    if alive is None:
        return numbers
    return torch.where(alive.to(numbers.device), numbers, numbers.new_zeros(()))


@dataclass(frozen=True, eq=False, repr=False)
class Linear(Recurrent):
    """Products of features, with a decay between key and query.

    S ← exp(log_decay) S + key ⊗ value; a query reads query · S. The weight of key s at query t is

        exp(Σ log_decay of the keys after s, up to t) · query_t · key_s,

    divided by the sum of its row where `normalised`; a row of zeros stays 0. With a causal
    mask a query reads S after its own position, otherwise after the last key. The mask may name
    keys (padding) and causality, nothing else.

    `memory` and `normaliser` are S and Σ key of what came before these keys: they have no columns,
    so rows of a distribution then sum to less than 1, and `mixed()` adds what is read of them.
    """

    query: Queries
    key: Keys
    value: Values | None = None
    log_decay: PerKey | None = None
    mask: Mask | None = None
    memory: Memory | None = None
    normaliser: Float[Tensor, "batch head width"] | None = None
    normalised: bool = True
    of: Kind = "distribution"

    @property
    def kind(self) -> Kind:
        return "partial" if self.of == "distribution" and self.memory is not None else self.of

    def check(self) -> None:
        super().check()
        if self.normalised and (self.memory is None) != (self.normaliser is None):
            raise ShapeError(
                "Linear: a memory without its normaliser, or the other way round; rows that are "
                "normalised need both, or neither"
            )

    def written(self) -> Written:
        return self._written(None)

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        _, _, queries, keys = self.shape
        rows, columns = span(rows, queries), span(columns, keys, "columns")
        if not self.normalised:
            return self._products(rows, columns)
        whole = self._products(rows, slice(0, keys))
        total = whole.sum(-1, keepdim=True)
        earlier = self._decayed_queries(rows)
        if self.normaliser is not None and earlier is not None:
            total = total + product(earlier, self.normaliser.to(self.dtype)[..., None])
        return divided(whole[..., columns], total)

    def read_earlier(self, rows: slice) -> Mixed | None:
        earlier = self._decayed_queries(rows)
        if self.memory is None or earlier is None:
            return None
        read = product(earlier, self.memory.to(self.dtype))
        if not self.normalised:
            return read
        assert self.normaliser is not None
        total = self._products(rows, slice(0, self.shape.keys)).sum(-1, keepdim=True)
        return divided(read, total + product(earlier, self.normaliser.to(self.dtype)[..., None]))

    def _products(self, rows: slice, columns: slice) -> Weights:
        """Weights before they are divided by the sums of their rows."""
        written = self.written().part(columns)
        products = product(self.query[:, :, rows].to(self.dtype), written.key.mT)
        positions = torch.arange(columns.start, columns.stop, device=self.device)
        seen = positions <= self._ends(rows)[:, None]  # (query, key)
        if self.log_decay is None:
            return products.masked_fill(~seen, 0.0)
        sums = self._sums()
        logs = (self._at_ends(sums, rows)[..., None] - sums[..., None, columns]).to(self.dtype)
        return products.masked_fill(~seen, 0.0) * exp(logs.masked_fill(~seen, 0.0))

    def _decayed_queries(self, rows: slice) -> Tensor | None:
        """Queries with what has become of an earlier memory until they read it."""
        if self.memory is None:
            return None
        query = self.query[:, :, rows].to(self.dtype)
        if self.log_decay is None:
            return query
        return query * exp(self._at_ends(self._sums(), rows)[..., None].to(self.dtype))

    def _sums(self) -> Tensor:
        """Decay from the beginning up to each key, (batch, head, key), as logarithms; in float64,
        as small differences of large sums are what counts."""
        log_decay = self.written().log_decay
        assert log_decay is not None
        return log_decay.double().cumsum(-1)

    def _at_ends(self, sums: Tensor, rows: slice) -> Tensor:
        """The sums at the last key that each query reads, 0 before the first: (…, query)."""
        return torch.nn.functional.pad(sums, (1, 0))[..., self._ends(rows) + 1]


@dataclass(frozen=True, eq=False, repr=False)
class Delta(Recurrent):
    """The delta rule: a key's value replaces what the memory holds for that key.

    S ← exp(log_decay) (S − strength · key ⊗ (key · S)) + strength · key ⊗ value; a query reads
    query · S. The weight of key s at query t is

        strength_s · query_t · A_t … A_{s+1} key_s,
        A_r = exp(log_decay_r) (1 − strength_r key_r key_rᵀ),

    which may be negative. With a causal mask a query reads S after its own position, otherwise
    after the last key. The mask may name keys (padding) and causality, nothing else.

    `memory` is the S that was there before these keys: it has no columns, and `mixed()` adds what
    is read of it.
    """

    query: Queries
    key: Keys
    strength: PerKey
    value: Values | None = None
    log_decay: PerKey | None = None
    mask: Mask | None = None
    memory: Memory | None = None

    @property
    def kind(self) -> Kind:
        return "signed"

    def written(self) -> Written:
        return self._written(self.strength)

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        _, _, queries, keys = self.shape
        rows, columns = span(rows, queries), span(columns, keys, "columns")
        blocks = [weights for _, weights in self._backwards(rows, columns.start)]
        tail = torch.cat([*reversed(blocks), self._nothing(rows)], dim=-1)  # from columns.start on
        breadth = columns.stop - columns.start
        return F.pad(tail, (0, max(0, breadth - tail.shape[-1])))[..., :breadth]

    def read_earlier(self, rows: slice) -> Mixed | None:
        if self.memory is None:
            return None
        query = self.query[:, :, rows].to(self.dtype)
        for query, _ in self._backwards(rows, 0):  # noqa: B007  # the last one is what reads
            pass
        return product(query, self.memory.to(self.dtype))

    def _nothing(self, rows: slice) -> Weights:
        return self.query[:, :, rows, :0].to(self.dtype)

    def _backwards(self, rows: slice, first: int) -> Iterator[tuple[Tensor, Weights]]:
        """From the last key back to `first`, a chunk at a time: queries as they read the memory
        before the chunk, and the weights of its keys.

        With L = strength_i (key_i · key_j) decay_ij below the diagonal, the chunk writes
        U = (1 + L)⁻¹ strength (V − decay_i key_i · S); P = query · key decay are the weights of U.
        """
        written, ends = self.written(), self._ends(rows)
        query = self.query[:, :, rows].to(self.dtype)
        for columns in reversed(self._chunks(rows, first)):
            chunk = written.part(columns)
            assert chunk.strength is not None
            positions = torch.arange(columns.start, columns.stop, device=self.device)
            seen = positions <= ends[:, None]  # (query, key)
            below = product(chunk.key * chunk.strength[..., None], chunk.key.mT).tril(-1)
            products = product(query, chunk.key.mT).masked_fill(~seen, 0.0)
            if chunk.log_decay is not None:
                sums = chunk.log_decay.cumsum(-1)
                below = below * decays(sums)
                at_ends = torch.nn.functional.pad(sums, (1, 0))[
                    ..., (ends - columns.start + 1).clamp(0, positions.numel())
                ]  # (…, query)
                logs = at_ends[..., None] - sums[..., None, :]
                products = products * exp(logs.masked_fill(~seen, 0.0))
                query = query * exp(at_ends[..., None])
            solved = torch.linalg.solve_triangular(
                below, products, upper=False, left=False, unitriangular=True
            )
            weights = solved * chunk.strength[..., None, :]
            taken = weights
            if chunk.log_decay is not None:
                taken = weights * exp(sums[..., None, :])
            query = query - product(taken, chunk.key)
            yield query, weights

    def _chunks(self, rows: slice, first: int) -> list[slice]:
        """Keys from `first` on that these queries may read; one chunk where lengths are symbols."""
        _, _, queries, keys = self.shape
        if torch.compiler.is_compiling():
            return [slice(first, keys)]
        last = min(keys, rows.stop + keys - queries) if self.causal else keys
        return list(pieces(last, CHUNK, first))


def decays(sums: Float[Tensor, "*lead key"]) -> Float[Tensor, "*lead key key"]:
    """Decay from each key to each later one, 0 above the diagonal; `sums` are logarithms.

    Differences of logarithms, and never ratios of products: those would be 0 / 0.
    """
    return exp((sums[..., :, None] - sums[..., None, :]).tril()).tril()


def divided(numbers: Tensor, total: Tensor) -> Tensor:
    """Numbers by the sums of their rows; a row that sums to 0, as one of zeros, stays as it is."""
    return numbers / (total + (total == 0))


def key_mask(mask: Mask | None) -> tuple[bool, Bool[Tensor, "batch key"] | None]:
    """Whether a mask is causal, and which keys are real; raise where it says anything else."""
    causal, keep = False, None
    for part in [] if mask is None else parts(mask):
        if isinstance(part, Band) and part.left is None and part.right == 0:
            causal = True
        elif isinstance(part, Padding):
            keep = part.keep if keep is None else keep & part.keep
        elif isinstance(part, Pairs) and part.allowed.shape[1:3] == (1, 1):
            real = part.allowed[:, 0, 0]
            keep = real if keep is None else keep & real
        else:
            raise MaskError(
                f"mask {part!r}: a memory is read whole, so a mask may only name keys "
                "(masks.padding, masks.lengths, or a tensor (batch, 1, 1, key)) and causality; "
                "what depends on the query or the head needs softmax attention, as MultiHead"
            )
    return causal, keep


register_pytree(Linear, static=("normalised", "of"))
register_pytree(Delta)
