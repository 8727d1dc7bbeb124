"""The parts a mask is made of, and what all of them can do."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.errors import DtypeError, RegardError
from regard.masks.sizes import clip, fits, least, outside, pick, row_strips
from regard.types import Allowed, Block, Shape, brief, register_pytree, whole


class Mask(ABC):
    """Who may attend to whom. Combine with `&`, `|`, `~`."""

    @abstractmethod
    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        """May these queries attend to these keys?

        Returns a boolean tensor that broadcasts to (batch, head, rows, columns), or True or False
        where the whole block is known to be alike.
        """

    def columns(self, rows: slice, queries: int, keys: int) -> slice:
        """A range of keys outside which these rows may attend to nothing."""
        return slice(0, keys)

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        """Keys that some query may attend to; None when that is every key."""
        found: Tensor | None = None
        for rows in row_strips(queries, keys):
            allowed = self.block(Block.of(rows, slice(0, keys), queries, keys), device)
            if allowed is True:
                return None
            if allowed is not False:
                here = allowed.any(2).expand(-1, -1, keys)
                found = here if found is None else found | here
        if found is None:
            return torch.zeros(1, 1, keys, dtype=torch.bool, device=device)
        return found

    def awake(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        """Queries that may attend to some key; None when that is every query."""
        strips = []
        for rows in row_strips(queries, keys):
            allowed = self.block(Block.of(rows, slice(0, keys), queries, keys), device)
            if isinstance(allowed, bool):
                height = rows.stop - rows.start
                strips.append(torch.full((1, 1, height), allowed and keys > 0, device=device))
            else:
                strips.append(allowed.any(3).expand(-1, -1, rows.stop - rows.start))
        if not strips:
            return None
        batch, heads = (max(strip.shape[axis] for strip in strips) for axis in (0, 1))
        return torch.cat([strip.expand(batch, heads, -1) for strip in strips], dim=2)

    @property
    def sees_itself(self) -> bool:
        """Whether every query is known to attend to its own position, padding apart."""
        return False

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        """The mask of the keys that are left when those of `gap` are dropped."""
        blocks = []
        for columns in (slice(0, gap.start), slice(gap.stop, keys)):
            block = Block.of(slice(0, queries), columns, queries, keys)
            allowed = torch.as_tensor(self.block(block, device), device=device)
            shape = torch.broadcast_shapes(allowed.shape, (1, 1, queries, block.breadth))
            blocks.append(allowed.expand(shape))
        return Pairs(torch.cat(blocks, dim=3))

    def counts(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Int[Tensor, "batch head query"]:
        """How many keys each query may attend to; broadcasts over batch and head."""
        strips = []
        for rows in row_strips(queries, keys):
            allowed = self.block(Block.of(rows, slice(0, keys), queries, keys), device)
            height = rows.stop - rows.start
            if isinstance(allowed, bool):
                strips.append(torch.full((1, 1, height), keys if allowed else 0, device=device))
            else:
                strips.append(allowed.expand(-1, -1, height, keys).sum(3))
        if not strips:
            return torch.zeros(1, 1, 0, dtype=torch.long, device=device)
        batch, heads = (max(strip.shape[axis] for strip in strips) for axis in (0, 1))
        return torch.cat([strip.expand(batch, heads, -1) for strip in strips], dim=2)

    def own(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        """Queries that may attend to the key at their own position; None when that is every query.

        What it says of queries before the first key, which have no such key, means nothing.
        """
        position = own_positions(queries, keys, device).clamp_min(0)
        strips = []
        for rows in row_strips(queries, keys):
            allowed = self.block(Block.of(rows, slice(0, keys), queries, keys), device)
            height = rows.stop - rows.start
            if isinstance(allowed, bool):
                strips.append(torch.full((1, 1, height), allowed, device=device))
            else:
                allowed = allowed.expand(-1, -1, height, keys)
                index = position[rows][None, None, :, None].to(allowed.device)
                strips.append(torch.take_along_dim(allowed, index, 3)[..., 0])
        if not strips:
            return None
        batch, heads = (max(strip.shape[axis] for strip in strips) for axis in (0, 1))
        return torch.cat([strip.expand(batch, heads, -1) for strip in strips], dim=2)

    def check(self, shape: Shape) -> None:  # noqa: B027  # a band fits every shape
        """Raise a `MaskError` that names the axis when this mask does not fit `shape`."""

    def dense(self, queries: int, keys: int, device: torch.device | None = None) -> Allowed:
        """The mask as a boolean tensor that broadcasts over batch and head."""
        allowed = self.block(whole(queries, keys), device)
        if isinstance(allowed, bool):
            return torch.full((1, 1, queries, keys), allowed, device=device)
        return allowed.expand(-1, -1, queries, keys)

    def at(self, batch: int, head: int) -> Mask:
        """The mask of one example and head."""
        return self

    def of_heads(self, which: Sequence[int]) -> Mask:
        """The mask of some heads."""
        picked = {}
        for field in fields(self):  # type: ignore[arg-type]  # every mask is a dataclass
            part = getattr(self, field.name)
            picked[field.name] = part.of_heads(which) if isinstance(part, Mask) else part
        return type(self)(**picked)

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors on `device`."""
        moved = {}
        for field in fields(self):  # type: ignore[arg-type]  # every mask is a dataclass
            part = getattr(self, field.name)
            moved[field.name] = part.to(device) if isinstance(part, Tensor | Mask) else part
        return type(self)(**moved)

    def __repr__(self) -> str:
        return brief(self)

    def __bool__(self) -> bool:
        raise RegardError("a Mask is neither True nor False; combine masks with &, | and ~")

    def __rand__(self, other: Any) -> Mask:
        _only_masks(other)  # somebody else's `&`: never a mask
        return self

    __ror__ = __rand__

    def __and__(self, other: Mask) -> Mask:
        _only_masks(other)
        if isinstance(self, Band) and isinstance(other, Band):
            firsts = {band.first for band in (self, other) if band.left is not None}
            if len(firsts) < 2:
                left, right = least(self.left, other.left), least(self.right, other.right)
                return Band(left, right, *firsts)
        return Both(self, other)

    def __or__(self, other: Mask) -> Mask:
        _only_masks(other)
        return Either(self, other)

    def __invert__(self) -> Mask:
        return Opposite(self)


@dataclass(frozen=True, eq=False, repr=False)
class Padding(Mask):
    """Keys that are real: `keep` (batch or 1, key)."""

    keep: Bool[Tensor, "batch key"]

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        return self.keep[:, None, None, block.columns]

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        return self.keep[:, None]

    def awake(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        return self.keep.any(1)[:, None, None].expand(-1, -1, queries)

    def counts(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Int[Tensor, "batch head query"]:
        return self.keep.sum(1)[:, None, None].expand(-1, -1, queries)

    def own(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        position = own_positions(queries, keys, self.keep.device)
        return self.keep.index_select(1, position.clamp_min(0))[:, None]

    def check(self, shape: Shape) -> None:
        fits("padding", self.keep.shape, {"batch": shape.batch, "key": shape.keys}, ("batch",))

    def at(self, batch: int, head: int) -> Mask:
        return Padding(pick(self.keep, 0, batch))

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        return Padding(outside(self.keep, gap))


@dataclass(frozen=True, eq=False, repr=False)
class Band(Mask):
    """Keys from `left` before to `right` after the query's own position; None is no limit.

    To the `first` keys of all the left limit does not apply.
    """

    left: int | None
    right: int | None
    first: int = 0

    def __repr__(self) -> str:
        if self.left is None and self.right == 0:
            return "causal()"
        first = f", first={self.first}" if self.first else ""
        return f"window({self.left}, {self.right}{first})"

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        alike = None if torch.compiler.is_compiling() else self._alike(block)
        if alike is not None:
            return alike
        rows = torch.arange(block.top, block.bottom, device=device) + block.offset
        columns = torch.arange(block.left, block.right, device=device)
        offset = columns - rows[:, None]
        allowed = torch.ones_like(offset, dtype=torch.bool)
        if self.left is not None:
            near = offset >= -self.left
            allowed = near | (columns < self.first) if self.first else near
        if self.right is not None:
            allowed = allowed & (offset <= self.right)
        return allowed[None, None]

    def _alike(self, block: Block) -> bool | None:
        """Whether the whole block is permitted or forbidden; None where it is mixed."""
        # Offsets key − query position over the block run from `least` to `most`.
        least = block.left - (block.bottom - 1 + block.offset)
        most = block.right - 1 - (block.top + block.offset)
        left = -most if self.left is None else self.left
        right = most if self.right is None else self.right
        unlimited = self.left is None or block.right <= self.first
        if (unlimited or least >= -left) and most <= right:
            return True
        too_early = most < -left and block.left >= self.first
        return False if too_early or least > right else None

    def columns(self, rows: slice, queries: int, keys: int) -> slice:
        offset = keys - queries
        start = 0 if self.left is None or self.first else rows.start + offset - self.left
        stop = keys if self.right is None else rows.stop + offset + self.right
        return clip(start, stop, keys)

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        if not torch.compiler.is_compiling():
            seen = self.columns(slice(0, queries), queries, keys)
            if seen.start == 0 and seen.stop == keys:
                return None
        first = 0 if self.left is None else keys - queries - self.left
        last = keys if self.right is None else keys - 1 + self.right
        position = torch.arange(keys, device=device)
        inside: Tensor = ((position >= first) | (position < self.first)) & (position <= last)
        return inside[None, None]

    def awake(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        # With no more queries than keys every query sees at least its own position.
        sees_itself = not torch.compiler.is_compiling() and queries <= keys
        return None if sees_itself else super().awake(queries, keys, device)

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        # Distances to the keys behind the gap stay; those before it are then nearer than they were.
        if self.left is None or gap.start in (0, self.first):
            return self
        return super().without_keys(gap, queries, keys, device)

    @property
    def sees_itself(self) -> bool:
        return (self.left is None or self.left >= 0) and (self.right is None or self.right >= 0)

    def counts(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Int[Tensor, "batch head query"]:
        if self.first:
            return super().counts(queries, keys, device)
        start, stop = self.ranges(queries, keys, device)
        return (stop - start)[None, None]

    def own(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        return None  # neither end of a band is on the far side of the query

    def ranges(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> tuple[Int[Tensor, " query"], Int[Tensor, " query"]]:
        """The first key that each query may attend to, and the one behind the last."""
        position = own_positions(queries, keys, device)
        stop = torch.full_like(position, keys)
        if self.right is not None:
            stop = (position + self.right + 1).clamp(0, keys)
        start = torch.zeros_like(position)
        if self.left is not None:
            start = (position - self.left).clamp(0, keys)
        return start.minimum(stop), stop


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Mask):
    """Any boolean tensor in the full form (batch or 1, head or 1, query or 1, key)."""

    allowed: Allowed

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        if self.allowed.shape[2] == 1:
            return self.allowed[..., block.columns]
        return self.allowed[:, :, block.rows, block.columns]

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        return self.allowed.any(2)

    def check(self, shape: Shape) -> None:
        sizes = {"batch": shape.batch, "head": shape.heads, "query": shape.queries}
        sizes["key"] = shape.keys
        fits("pairs", self.allowed.shape, sizes, ("batch", "head", "query"))

    def of_heads(self, which: Sequence[int]) -> Mask:
        return self if self.allowed.shape[1] == 1 else Pairs(self.allowed[:, list(which)])

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        return Pairs(outside(self.allowed, gap))

    def at(self, batch: int, head: int) -> Mask:
        return Pairs(pick(pick(self.allowed, 0, batch), 1, head))


@dataclass(frozen=True, eq=False, repr=False)
class Segments(Mask):
    """Packed sequences: attend only within the same segment number."""

    query: Int[Tensor, "batch query"]
    key: Int[Tensor, "batch key"]

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        mine, theirs = self.query[:, block.rows, None], self.key[:, None, block.columns]
        return (mine == theirs)[:, None]

    def check(self, shape: Shape) -> None:
        sides = (("query", self.query, shape.queries), ("key", self.key, shape.keys))
        for name, numbers, size in sides:
            fits("segments", numbers.shape, {"batch": shape.batch, name: size}, ("batch",))

    def at(self, batch: int, head: int) -> Mask:
        query = pick(self.query, 0, batch)
        return Segments(query, query if self.sees_itself else pick(self.key, 0, batch))

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        return Segments(self.query, outside(self.key, gap))

    @property
    def sees_itself(self) -> bool:
        return self.query is self.key

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        return None if self.sees_itself else super().alive(queries, keys, device)

    def awake(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        return None if self.sees_itself else super().awake(queries, keys, device)


@dataclass(frozen=True, eq=False, repr=False)
class Both(Mask):
    """What both masks permit."""

    first: Mask
    second: Mask

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        first, second = self.first.block(block, device), self.second.block(block, device)
        if isinstance(first, bool):
            return second if first else False
        if isinstance(second, bool):
            return first if second else False
        return first & second

    def columns(self, rows: slice, queries: int, keys: int) -> slice:
        first = self.first.columns(rows, queries, keys)
        second = self.second.columns(rows, queries, keys)
        return clip(max(first.start, second.start), min(first.stop, second.stop), keys)

    def alive(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head key"] | None:
        found = parts(self)
        bands = [part for part in found if isinstance(part, Band)]
        if len(bands) < 2 and all(isinstance(part, Padding | Band) for part in found):
            # Padding asks nothing of the query, so the parts decide one by one.
            first, second = (
                self.first.alive(queries, keys, device),
                self.second.alive(queries, keys, device),
            )
            if first is None or second is None:
                return second if first is None else first
            return first & second
        if queries == keys and all(isinstance(part, Padding) or part.sees_itself for part in found):
            pads = [part.keep for part in found if isinstance(part, Padding)]
            return functools.reduce(torch.logical_and, pads)[:, None] if pads else None
        return super().alive(queries, keys, device)

    def awake(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        if queries == keys and self.sees_itself:
            return None
        if self._padded_band() is None:
            return super().awake(queries, keys, device)
        return self.counts(queries, keys, device) > 0

    def counts(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Int[Tensor, "batch head query"]:
        padded_band = self._padded_band()
        if padded_band is None:
            return super().counts(queries, keys, device)
        keep, band = padded_band
        real = torch.nn.functional.pad(keep.long().cumsum(1), (1, 0))  # (batch, key + 1)
        start, stop = band.ranges(queries, keys, keep.device)
        return (real[:, stop] - real[:, start])[:, None]

    def own(
        self, queries: int, keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "batch head query"] | None:
        first, second = (
            self.first.own(queries, keys, device),
            self.second.own(queries, keys, device),
        )
        if first is None or second is None:
            return second if first is None else first
        return first & second

    def _padded_band(self) -> tuple[Bool[Tensor, "batch key"], Band] | None:
        """The real keys and the band, where this is padding and one band and nothing else."""
        found = parts(self)
        bands = [part for part in found if isinstance(part, Band)]
        pads = [part.keep for part in found if isinstance(part, Padding)]
        if len(bands) != 1 or len(pads) != len(found) - 1 or bands[0].first:
            return None
        return functools.reduce(torch.logical_and, pads), bands[0]

    def without_keys(
        self, gap: slice, queries: int, keys: int, device: torch.device | None = None
    ) -> Mask:
        first, second = (
            part.without_keys(gap, queries, keys, device) for part in (self.first, self.second)
        )
        return first & second

    @property
    def sees_itself(self) -> bool:
        return self.first.sees_itself and self.second.sees_itself

    def check(self, shape: Shape) -> None:
        self.first.check(shape)
        self.second.check(shape)

    def at(self, batch: int, head: int) -> Mask:
        return Both(self.first.at(batch, head), self.second.at(batch, head))


@dataclass(frozen=True, eq=False, repr=False)
class Either(Mask):
    """What at least one of the masks permits."""

    first: Mask
    second: Mask

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        first, second = self.first.block(block, device), self.second.block(block, device)
        if isinstance(first, bool):
            return True if first else second
        if isinstance(second, bool):
            return True if second else first
        return first | second

    def columns(self, rows: slice, queries: int, keys: int) -> slice:
        first = self.first.columns(rows, queries, keys)
        second = self.second.columns(rows, queries, keys)
        return slice(min(first.start, second.start), max(first.stop, second.stop))

    def check(self, shape: Shape) -> None:
        self.first.check(shape)
        self.second.check(shape)

    def at(self, batch: int, head: int) -> Mask:
        return Either(self.first.at(batch, head), self.second.at(batch, head))


@dataclass(frozen=True, eq=False, repr=False)
class Opposite(Mask):
    """What the mask forbids."""

    mask: Mask

    def block(self, block: Block, device: torch.device | None = None) -> bool | Allowed:
        allowed = self.mask.block(block, device)
        return not allowed if isinstance(allowed, bool) else ~allowed

    def check(self, shape: Shape) -> None:
        self.mask.check(shape)

    def at(self, batch: int, head: int) -> Mask:
        return Opposite(self.mask.at(batch, head))


for _cls in (Padding, Pairs, Segments, Both, Either, Opposite):
    register_pytree(_cls)
register_pytree(Band, static=("left", "right", "first"))


def _only_masks(other: Any) -> None:
    if not isinstance(other, Mask):
        raise DtypeError(
            f"a Mask combines with a Mask, not with {type(other).__name__}; "
            "a boolean tensor becomes one by masks.pairs(allowed) or masks.padding(keep)"
        )


def own_positions(
    queries: int, keys: int, device: torch.device | None = None
) -> Int[Tensor, " query"]:
    """The key position that each query stands at; negative before the first key."""
    return torch.arange(queries, device=device) + (keys - queries)


def is_causal(mask: Mask) -> bool:
    """Whether this is causality, as `masks.causal()`."""
    return isinstance(mask, Band) and mask.left is None and mask.right == 0


def parts(mask: Mask) -> list[Mask]:
    """The masks whose intersection this is."""
    return parts(mask.first) + parts(mask.second) if isinstance(mask, Both) else [mask]
