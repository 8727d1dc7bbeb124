"""Attention that leaves out blocks nobody may attend in: sliding windows and packed sequences.

A plan covers the permitted pairs with rectangles. Each is one call of torch's flash operator, whose
answers are written into one output. That is one operator for autograd, whose backward pass adds up
the gradients of keys that several rectangles share, and for capture, which sees one attention.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.masks.parts import Band, Mask, Padding, Segments, parts
from regard.types import Block, Keys, LogSumExp, Mixed, Queries, Values, pieces

OPERATOR = "regard::blockwise_attention"
_flash = torch._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_STRIP = 128  # rows of a window that are attended to together
_CALL = 1 << 12  # scores that take as long as one more call
_SMALL = 1 << 18  # scores that are not worth a plan


class Rectangle(NamedTuple):
    """Some queries of some examples, and the range of keys outside which they see nothing, but for
    the first keys of a band. Within it `causal` stands for the band where it is, and the segments
    need not be looked at where it lies `inside` of one."""

    start: int  # examples
    stop: int
    top: int  # queries
    bottom: int
    left: int  # keys
    right: int
    causal: bool
    inside: bool


class Structure(NamedTuple):
    """A mask that plans are made for: a band, segments and padding, intersected."""

    band: Band
    segments: Segments | None
    keep: Bool[Tensor, "batch key"] | None

    @classmethod
    def of(cls, mask: Mask | None) -> Structure | None:
        """The structure of a mask; None where it has none that leaves blocks out."""
        mask_parts = [] if mask is None else parts(mask)
        band, segments, keep = Band(None, None), None, None
        for part in mask_parts:
            if isinstance(part, Band):
                both = band & part
                if not isinstance(both, Band):
                    return None
                band = both
            elif isinstance(part, Segments) and segments is None:
                segments = part
            elif isinstance(part, Padding):
                keep = part.keep if keep is None else keep & part.keep
            else:
                return None
        return None if band.left is None and segments is None else cls(band, segments, keep)

    @property
    def mask(self) -> Mask:
        """The mask it was made of."""
        more = [] if self.segments is None else [self.segments]
        padding = [] if self.keep is None else [Padding(self.keep)]
        return functools.reduce(lambda first, second: first & second, [self.band, *more, *padding])


def plan(structure: Structure, query: Queries, key: Keys) -> list[Rectangle] | None:
    """Rectangles that cover all permitted pairs; None where one call costs no more."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    whole = batch * queries * keys
    if whole * heads < _SMALL:
        return None
    rectangles: list[Rectangle] = []
    area = 0
    for rectangle in _rectangles(structure, batch, queries, keys):
        rectangles.append(rectangle)
        start, stop, top, bottom, left, right, _, _ = rectangle
        area += (stop - start) * (bottom - top) * (right - left) + _CALL // heads
        if area > 0.8 * whole:
            return None
    return rectangles


def _rectangles(structure: Structure, batch: int, queries: int, keys: int) -> Iterator[Rectangle]:
    band, offset = structure.band, keys - queries
    for examples, rows, columns in _spans(structure.segments, batch, queries, keys):
        inside = structure.segments is not None and columns is not None
        near = slice(0, keys) if columns is None else columns
        square = rows.start + offset == near.start and rows.stop + offset == near.stop
        long = rows.stop - rows.start
        reaches = band.left is None or band.left >= long - 1
        if square and band.right == 0 and reaches and structure.keep is None:
            yield Rectangle(*examples, rows.start, rows.stop, near.start, near.stop, True, inside)
            continue
        limited = not (reaches and (band.right is None or band.right >= long - 1))
        for strip in pieces(rows.stop, _STRIP if limited else max(long, 1), rows.start):
            seen = Band(band.left, band.right).columns(strip, queries, keys)
            left, right = max(seen.start, near.start), min(seen.stop, near.stop)
            if structure.segments is not None and near.start < band.first:
                left = near.start  # the first keys of all are part of this segment
            if left < right:
                yield Rectangle(*examples, strip.start, strip.stop, left, right, False, inside)


def _spans(
    segments: Segments | None, batch: int, queries: int, keys: int
) -> Iterator[tuple[tuple[int, int], slice, slice | None]]:
    """Examples, rows and the keys of their segment, where those lie in one piece."""
    if segments is None:
        yield (0, batch), slice(0, queries), None
        return
    query, key = segments.query, segments.key
    alike = all(bool((side == side[:1]).all()) for side in (query, key))
    for example in range(1 if alike else batch):
        mine = _runs(query[0 if len(query) == 1 else example])
        theirs: dict[int, slice | None] = {}
        for number, span in _runs(key[0 if len(key) == 1 else example]):
            theirs[number] = span if number not in theirs else None
        for number, rows in mine:
            if number in theirs:
                yield (0, batch) if alike else (example, example + 1), rows, theirs[number]


def _runs(numbers: Int[Tensor, " position"]) -> list[tuple[int, slice]]:
    """Equal neighbours: their number, and where they are."""
    values, counts = torch.unique_consecutive(numbers, return_counts=True)
    stops = counts.cumsum(0).tolist()
    starts = [0, *stops[:-1]]
    return [(value, slice(*span)) for value, *span in zip(values.tolist(), starts, stops)]


def attention(
    query: Queries,
    key: Keys,
    value: Values,
    scale: float,
    structure: Structure,
    rectangles: Sequence[Rectangle],
) -> tuple[Mixed, LogSumExp]:
    """Output and log-sum-exp of the rectangles; 0 for queries that none of them holds."""
    band, segments = structure.band, structure.segments
    flat = [int(number) for rectangle in rectangles for number in rectangle]
    output, lse = _operator(
        query,
        key,
        value,
        scale,
        band.left,
        band.right,
        band.first,
        None if segments is None else segments.query,
        None if segments is None else segments.key,
        structure.keep,
        flat,
    )
    return output, lse


# Written out: torch cannot infer it where run-time type checks wrap the function.
_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, float scale, SymInt? left, SymInt? right, "
    "SymInt first, Tensor? query_segments, Tensor? key_segments, Tensor? keep, "
    "SymInt[] rectangles) -> (Tensor, Tensor)"
)


@torch.library.custom_op(OPERATOR, mutates_args=(), schema=_SCHEMA)
def _operator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    left: int | None,
    right: int | None,
    first: int,
    query_segments: Tensor | None,
    key_segments: Tensor | None,
    keep: Tensor | None,
    rectangles: list[int],
) -> tuple[Tensor, Tensor]:
    structure = structure_of(left, right, first, query_segments, key_segments, keep)
    batch, heads, queries, _ = query.shape
    output = query.new_zeros(batch, queries, heads, value.shape[3]).transpose(1, 2)
    dtype = torch.promote_types(query.dtype, torch.float32)
    lse = torch.zeros(batch, heads, queries, dtype=dtype, device=query.device)
    for call in _calls(structure, query, key, rectangles):
        q, k, v = query[call.rows], call.keys(key), call.keys(value)
        mixed, sums = _flash(q, k, v, 0.0, call.causal, attn_mask=call.added, scale=scale)
        output[call.rows] = mixed
        lse[call.rows] = sums
    return output, lse


@_operator.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _width = query.shape
    output = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
    dtype = torch.promote_types(query.dtype, torch.float32)
    return output, query.new_empty(batch, heads, queries, dtype=dtype)


def _backward(context: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, output, lse, *tensors = context.saved_tensors
    scale, left, right, first, rectangles = context.constants
    structure = structure_of(left, right, first, *tensors)
    gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
    sums = [  # several rectangles may share a key: their gradients are added in float32 or finer
        torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        for tensor in (query, key, value)
    ]
    for call in _calls(structure, query, key, rectangles):
        gradients = _flash_backward(
            gradient[call.rows],
            query[call.rows],
            call.keys(key),
            call.keys(value),
            output[call.rows],
            lse[call.rows],
            0.0,
            call.causal,
            attn_mask=call.added,
            scale=scale,
        )
        sums[0][call.rows] = gradients[0].to(sums[0].dtype)
        for total, part in zip(sums[1:], gradients[1:]):
            call.add(total, part)
    into = (total.to(tensor.dtype) for total, tensor in zip(sums, (query, key, value)))
    return (*into, *[None] * 8)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, scale, left, right, first, mine, theirs, keep, rectangles = inputs
    ctx.save_for_backward(query, key, value, *output, mine, theirs, keep)
    ctx.mark_non_differentiable(output[1])
    ctx.constants = scale, left, right, first, rectangles


_operator.register_autograd(_backward, setup_context=_setup)


def structure_of(
    left: int | None,
    right: int | None,
    first: int,
    mine: Tensor | None,
    theirs: Tensor | None,
    keep: Tensor | None,
) -> Structure:
    """The structure that the operator's arguments stand for."""
    segments = None if mine is None or theirs is None else Segments(mine, theirs)
    return Structure(Band(left, right, first), segments, keep)


class _Call(NamedTuple):
    """One call of the flash operator."""

    rows: tuple[slice, slice, slice]  # examples, heads, queries
    columns: slice
    first: int  # keys before the range that are seen as well
    added: Tensor | None  # -inf where forbidden
    causal: bool

    def keys(self, tensor: Tensor) -> Tensor:
        """The keys or values of the call."""
        near = tensor[self.rows[0], :, self.columns]
        if not self.first:
            return near
        return torch.cat([tensor[self.rows[0], :, : self.first], near], dim=2)

    def add(self, total: Tensor, part: Tensor) -> None:
        """Add what was made of those keys to what there is of all."""
        total[self.rows[0], :, self.columns] += part[:, :, self.first :]
        if self.first:
            total[self.rows[0], :, : self.first] += part[:, :, : self.first]


def _calls(
    structure: Structure, query: Tensor, key: Tensor, rectangles: list[int]
) -> Iterator[_Call]:
    """The calls of a plan, each with what is added to its scores."""
    queries, keys, everything = query.shape[2], key.shape[2], slice(None)
    dtype = torch.promote_types(query.dtype, torch.float32)
    # a band looks the same along the diagonal
    added_by_shape: dict[tuple[int, ...], Tensor | None] = {}
    size = len(Rectangle._fields)
    for start in range(0, len(rectangles), size):
        numbers = rectangles[start : start + size]
        start, stop, top, bottom, left, right, causal, inside = numbers
        examples, rows = slice(start, stop), slice(top, bottom)
        first = min(structure.band.first, left) if structure.segments is None else 0
        added = None
        if not causal:
            kind = (first, left - top, bottom - top, right - left)
            alone = structure.keep is None and (inside or structure.segments is None)
            alone = alone and left >= structure.band.first
            if alone and kind in added_by_shape:
                added = added_by_shape[kind]
            else:
                mask = _part(structure, examples, bool(inside))
                columns = [slice(0, first), slice(left, right)] if first else [slice(left, right)]
                blocks = [Block.of(rows, span, queries, keys) for span in columns]
                added = _added(mask, blocks, dtype, query.device)
            if alone:  # a rectangle that is not may look like one that is
                added_by_shape[kind] = added
        yield _Call((examples, everything, rows), slice(left, right), first, added, bool(causal))


def _part(structure: Structure, examples: slice, inside: bool) -> Mask:
    """The mask of some examples."""
    band, segments, keep = structure
    if segments is not None:
        sides = [segments.query, segments.key]
        sides = [side if len(side) == 1 else side[examples] for side in sides]
        segments = None if inside else Segments(*sides)
    keep = keep if keep is None or len(keep) == 1 else keep[examples]
    return Structure(band, segments, keep).mask


def _added(
    mask: Mask, blocks: list[Block], dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """-inf where the blocks, side by side, are forbidden; None where all is permitted."""
    allowed = [mask.block(block, device) for block in blocks]
    if all(part is True for part in allowed):
        return None
    full = [
        torch.full((1, 1, 1, block.breadth), part, device=device)
        if isinstance(part, bool)
        else part
        for part, block in zip(allowed, blocks)
    ]
    sizes = [max(part.shape[axis] for part in full) for axis in range(3)]
    permitted = torch.cat([part.expand(*sizes, -1) for part in full], dim=3)
    return torch.zeros((), dtype=dtype, device=device).where(permitted, -torch.inf)
