"""Attention of every position of an image to the positions around it, offset by offset.

Keys and values are not unfolded: for each offset they are a shifted view of the padded image, and
one product over the whole image scores it. What is held, for the gradient too, is a weight for each
position and offset, where unfolding holds every feature of key and value for them. It is one
operator, for compilers, which need not unroll it, and for capture, which sees one attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.recipe import Edges
from regard.types import Values, in_transform

OPERATOR = "regard::local_attention"
_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor rows, Tensor columns) -> (Tensor, Tensor)"
)

Maps = Float[Tensor, "batch head width row column"]
ValueMaps = Float[Tensor, "batch head value_width row column"]
RowScores = Float[Tensor, "batch head dy row column"]
ColumnScores = Float[Tensor, "batch head dx row column"]
LocalWeights = Float[Tensor, "batch head offset row column"]


def local_attention(
    query: Maps, key: Maps, value: ValueMaps, rows: RowScores, columns: ColumnScores
) -> tuple[ValueMaps, LocalWeights]:
    """softmax(query · key + rows + columns) over the offsets (dy, dx) that stay in the image.

    Args:
        query: (batch, head, width, row, column), already scaled.
        key: as `query`.
        value: as `query`, of any width.
        rows: what is added to the score of each dy, from the smallest; an odd number of them.
        columns: the same for each dx.

    Returns:
        The mixed values, and weights (batch, head, offset, row, column) in float32 or finer,
        offsets row by row.
    """
    if in_transform():  # an operator of one's own has no rule for torch.func and forward mode
        return _composite(query, key, value, rows, columns)
    output, weights = torch.ops.regard.local_attention(query, key, value, rows, columns)
    return output, weights


def edges_of(weights: LocalWeights, size: tuple[int, int], value: Values | None = None) -> Edges:
    """The recipe of local weights whose offsets are (dy, dx) of a window of this size."""
    height, width = weights.shape[3:]
    positions, offsets = height * width, weights.shape[2]
    query = torch.arange(positions, device=weights.device)
    return Edges(
        query[:, None].expand(-1, offsets).reshape(1, 1, -1),
        _neighbours(size, height, width, weights.device).reshape(1, 1, -1),
        weights.flatten(3).mT.flatten(2),
        positions,
        positions,
        value,
        grid=(height, width),
    )


def _composite(
    query: Maps, key: Maps, value: ValueMaps, rows: RowScores, columns: ColumnScores
) -> tuple[ValueMaps, LocalWeights]:
    """The same out of plain operations, which hold a product for each offset."""
    size, dtype = (rows.shape[2], columns.shape[2]), _exact(query)
    scores = _products(query.to(dtype), key.to(dtype), size).unflatten(2, size)
    scores = (scores + rows[:, :, :, None] + columns[:, :, None]).flatten(2, 3)
    outside = ~_inside(size, query.shape[3], query.shape[4], query.device)
    weights = scores.masked_fill(outside, -torch.inf).softmax(2)
    products = zip(weights.unbind(2), _shifted(value.to(dtype), size))
    output = torch.stack([weight[:, :, None] * shifted for weight, shifted in products]).sum(0)
    return output.to(value.dtype), weights


@torch.library.custom_op(OPERATOR, mutates_args=(), schema=_SCHEMA)
def _operator(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    size, dtype = (rows.shape[2], columns.shape[2]), _exact(query)
    scores = _scores(query.to(dtype), key.to(dtype), size).unflatten(2, size)
    scores.add_(rows[:, :, :, None]).add_(columns[:, :, None])
    outside = ~_inside(size, query.shape[3], query.shape[4], query.device)
    weights = scores.flatten(2, 3).masked_fill_(outside, -torch.inf).softmax(2)
    return _mix(weights, value.to(dtype), size).to(value.dtype), weights


@_operator.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor]:
    batch, heads, _width, height, width = query.shape
    offsets = rows.shape[2] * columns.shape[2]
    weights = query.new_empty(batch, heads, offsets, height, width, dtype=_exact(query))
    return value.new_empty(value.shape), weights


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx: Any, gradient: Tensor, by_weights: Tensor | None) -> tuple[Tensor, ...]:
    query, key, value, rows, columns, weights = ctx.saved_tensors
    size, dtype = (rows.shape[2], columns.shape[2]), weights.dtype
    gradient = gradient.to(dtype)
    moved = _scores(gradient, value.to(dtype), size)  # ∂ loss / ∂ weights
    moved = moved if by_weights is None else moved + by_weights
    moved = weights * (moved - (weights * moved).sum(2, keepdim=True))  # ∂ loss / ∂ scores
    by_offset = moved.unflatten(2, size)
    return (
        _mix(moved, key.to(dtype), size).to(query.dtype),
        _spread(moved, query.to(dtype), size).to(key.dtype),
        _spread(weights, gradient, size).to(value.dtype),
        by_offset.sum(3).to(rows.dtype),
        by_offset.sum(2).to(columns.dtype),
    )


_operator.register_autograd(_backward, setup_context=_setup)


def _exact(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _scores(query: Tensor, key: Tensor, size: tuple[int, int]) -> Tensor:
    """query · key at each offset; 0 where a key is outside the image."""
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        return _products(query, key, size)  # a gradient of the gradient is wanted
    # One product at a time, in one place: allocators do not fill the gap between two sums.
    products = torch.empty_like(query)
    scores = query.new_empty(*query.shape[:2], size[0] * size[1], *query.shape[3:])
    for index, shifted in enumerate(_shifted(key, size)):
        scores[:, :, index] = torch.mul(query, shifted, out=products).sum(2)
    return scores


def _products(query: Tensor, key: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.stack([(query * shifted).sum(2) for shifted in _shifted(key, size)], 2)


def _mix(weights: Tensor, value: Tensor, size: tuple[int, int]) -> Tensor:
    """Σ over offsets of weight · value at that offset."""
    output = value.new_zeros(value.shape)  # contiguous, as compilers are told
    for weight, shifted in zip(weights.unbind(2), _shifted(value, size)):
        output.addcmul_(weight[:, :, None], shifted)
    return output


def _spread(weights: Tensor, features: Tensor, size: tuple[int, int]) -> Tensor:
    """The transpose of `_mix`: each position's features, added where it looks."""
    height, width = features.shape[3:]
    total = F.pad(torch.zeros_like(features), _padding(size))
    for weight, shifted in zip(weights.unbind(2), _windows(total, size, height, width)):
        shifted.addcmul_(weight[:, :, None], features)
    top, left = size[0] // 2, size[1] // 2
    return total[..., top : top + height, left : left + width].contiguous()


def _shifted(maps: Tensor, size: tuple[int, int]) -> Iterator[Tensor]:
    """Views of an image by offset: at each position what lies there, 0 outside."""
    return _windows(F.pad(maps, _padding(size)), size, maps.shape[3], maps.shape[4])


def _windows(padded: Tensor, size: tuple[int, int], height: int, width: int) -> Iterator[Tensor]:
    for row in range(size[0]):
        for column in range(size[1]):
            yield padded[..., row : row + height, column : column + width]


def _padding(size: tuple[int, int]) -> tuple[int, ...]:
    return (size[1] // 2, size[1] // 2, size[0] // 2, size[0] // 2)


def _inside(
    size: tuple[int, int], height: int, width: int, device: torch.device
) -> Bool[Tensor, "offset row column"]:
    """Whether the key at each offset from each position is in the image."""
    there = []
    for length, reach in zip((height, width), (size[0] // 2, size[1] // 2)):
        offsets = torch.arange(-reach, reach + 1, device=device)
        positions = offsets[:, None] + torch.arange(length, device=device)
        there.append((positions >= 0) & (positions < length))
    return (there[0][:, None, :, None] & there[1][None, :, None]).flatten(0, 1)


def _neighbours(
    size: tuple[int, int], height: int, width: int, device: torch.device
) -> Int[Tensor, "position offset"]:
    """The key at each offset from each position; the position itself where that is outside."""
    down, across = (torch.arange(length, device=device) - length // 2 for length in size)
    offsets = (down[:, None] * width + across).flatten()
    there = _inside(size, height, width, device).flatten(1).mT  # (position, offset)
    return torch.arange(height * width, device=device)[:, None] + torch.where(there, offsets, 0)
