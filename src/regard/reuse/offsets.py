"""The distribution of attention over key − query offsets, in bins, and its projection."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import RegardError
from regard.reuse.heads import HeadJoin, Joining
from regard.reuse.rows import ROW_SIDES, row_side, rows_of
from regard.reuse.source import Side, Source
from regard.softmax import product

#: Where bins start: one a near offset, wider ones further away.
STARTS = (-127, -63, -31, -15, -7, -3, -2, -1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 128)


class OffsetBins(nn.Module):
    """Σₕ Mₕ Wₕ, where Mₕ is the mass of each query's row in bins of key − query offset.

    The bins do not depend on the length. Query i is at key i (`align="start"`), or, as with a
    cache, the last query at the last key (`align="end"`); with as many queries as keys it is the
    same. With fewer queries and keys padded on the right, only "start" is independent of padding.

    Args:
        n_heads: number of heads of the weights.
        channels: channels of the output.
        side: "self", or "query" for cross-attention.
        starts: the first offset of each bin, rising; one more bin holds all before the first.
        align: "start" or "end".
        heads: "concat" gives every head a projection of its own; others join the maps first.
    """

    starts: Tensor
    sides = ROW_SIDES

    def __init__(
        self,
        n_heads: int,
        channels: int,
        *,
        side: Side = "self",
        starts: Sequence[int] | Tensor = STARTS,
        align: Literal["start", "end"] = "end",
        heads: Joining = "concat",
    ) -> None:
        super().__init__()
        if align not in ("start", "end"):
            raise RegardError(f"OffsetBins: align={align!r}, expected 'start' or 'end'")
        starts = starts.tolist() if isinstance(starts, Tensor) else list(starts)
        whole = all(isinstance(start, int) for start in starts)
        if not starts or not whole or any(a >= b for a, b in itertools.pairwise(starts)):
            raise RegardError(f"OffsetBins: starts={starts}, expected rising whole numbers")
        check_sizes("OffsetBins", n_heads=n_heads, channels=channels)
        self.n_heads, self.channels, self.side = n_heads, channels, row_side("OffsetBins", side)
        self.align = align
        self.register_buffer("starts", torch.tensor(starts))
        self.join = HeadJoin("OffsetBins", heads, n_heads)
        self.bins = len(starts) + 1
        self.table = nn.Parameter(torch.empty(self.join.maps, self.bins, channels))
        nn.init.normal_(self.table, std=self.join.maps**-0.5)

    def forward(self, source: Source) -> Tensor:
        """(batch, query, channels)."""
        weights = rows_of("OffsetBins", source, self.n_heads, self.side, self.join)
        return product(self.mass(weights), self.table.to(weights.dtype)).sum(1)

    def mass(self, weights: Tensor) -> Tensor:
        """The mass of each row in each bin, (batch, map, query, bin)."""
        queries, keys = weights.shape[2:]
        if keys == 0:
            return weights.new_zeros(*weights.shape[:3], self.bins)
        position = torch.arange(queries, device=weights.device)
        if self.align == "end":
            position = position + (keys - queries)
        starts = self.starts.to(weights.device)
        ends = (position[:, None] + starts).clamp(0, keys)  # keys before each bin, (query, start)
        offset = torch.arange(keys, device=weights.device) - position[:, None]
        if torch.compiler.is_compiling():
            return _mass(weights, ends)
        bins = torch.bucketize(offset, starts, right=True)
        mass: Tensor = _Mass.apply(weights, ends, bins)  # type: ignore[no-untyped-call]
        return mass

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"{self.bins} bins to {self.channels} channels"


def _mass(weights: Tensor, ends: Tensor) -> Tensor:
    """Differences of cumulative sums at the ends of bins."""
    up_to = weights.cumsum(-1)
    before = up_to.gather(-1, (ends - 1).clamp_min(0).expand(*weights.shape[:2], -1, -1))
    before = before.masked_fill(ends == 0, 0.0)
    first, total = before.new_zeros(*before.shape[:-1], 1), up_to[..., -1:]
    return torch.cat([before, total], -1) - torch.cat([first, before], -1)


class _Mass(torch.autograd.Function):
    """`_mass`; in the backward pass every pair takes the gradient of its bin, in one gather."""

    @staticmethod
    def forward(weights: Tensor, ends: Tensor, bins: Tensor) -> Tensor:
        return _mass(weights, ends)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (bins,) = ctx.saved_tensors
        return gradient.gather(-1, bins.expand(*gradient.shape[:2], -1, -1)), None, None
