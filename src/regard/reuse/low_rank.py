"""A low-rank code of rows of weights: their first principal components."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import RegardError, UnavailableError
from regard.reuse.heads import HeadJoin, Joining
from regard.reuse.rows import (
    ROW_SIDES,
    Resampling,
    pooled,
    resampler,
    row_side,
    rows_of,
    through,
)
from regard.reuse.source import Side, Source, source_of


class _Sums(NamedTuple):
    """Sums over the rows observed so far, in double precision."""

    rows: Tensor
    total: Tensor  # (map, cell)
    products: Tensor  # (map, cell, cell)


class LowRankCode(nn.Module):
    """Principal components of each query's rows, (A R − μ) B, for every head or joined map.

    R resamples a row to cells, so that one code serves all lengths. Mean μ and components B are
    not trained. They are fitted on one batch (`fit`, a randomised singular value decomposition:
    Halko, Martinsson and Tropp 2011, algorithms 4.4 and 5.1) or streamed over a data set (`observe`
    for each batch, then `settle`: exact), and are saved with the module.

    Args:
        n_heads: number of heads of the weights.
        rank: components a map.
        side: "self", or "query" for cross-attention.
        cells: numbers that represent a row.
        resample: `pooled` or `interpolated`.
        heads: "concat" gives every head a code of its own; others join the maps first.

    >>> import torch
    >>> from regard.reuse import LowRankCode
    >>> code = LowRankCode(2, 3, cells=8)
    >>> code.fit(torch.randn(4, 2, 20, 20).softmax(-1))
    >>> code.explained.shape  # share of the variance, (head, component)
    torch.Size([2, 3])
    """

    sides = ROW_SIDES
    mean: Tensor
    basis: Tensor
    explained: Tensor
    fitted: Tensor

    def __init__(
        self,
        n_heads: int,
        rank: int,
        *,
        side: Side = "self",
        cells: int = 64,
        resample: Resampling = pooled,
        heads: Joining = "concat",
    ) -> None:
        super().__init__()
        self.n_heads, self.rank, self.side = n_heads, rank, row_side("LowRankCode", side)
        check_sizes("LowRankCode", n_heads=n_heads, rank=rank, cells=cells)
        self.cells, self.resample = cells, resample
        if rank > cells:
            raise RegardError(f"LowRankCode: rank={rank}, expected from 1 to {cells}, the cells")
        self.join = HeadJoin("LowRankCode", heads, n_heads)
        maps = self.join.maps
        self.channels = maps * rank
        self.register_buffer("mean", torch.zeros(maps, cells))
        self.register_buffer("basis", torch.zeros(maps, cells, rank))
        self.register_buffer("explained", torch.zeros(maps, rank))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self._ready = False  # `fitted` as a Python bool, for compilers
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]
        self._sums: _Sums | None = None

    def forward(self, source: Source) -> Tensor:
        """(batch, query, map · rank)."""
        if not self._ready:
            raise UnavailableError(
                "LowRankCode: not fitted yet; call fit(weights), or observe(weights) for each "
                "batch and then settle(), or load the state dict of a fitted one"
            )
        weights = rows_of("LowRankCode", source, self.n_heads, self.side, self.join)
        codes = through(weights, source, self.cells, self.resample, self.basis)
        middle = self.mean[:, None].to(weights.dtype) @ self.basis.to(weights.dtype)
        return (codes - middle).transpose(1, 2).flatten(2)  # (batch, query, map · rank)

    @torch.no_grad()
    def fit(
        self, weights: Any, *, generator: torch.Generator | None = None, **options: Any
    ) -> None:
        """Fit on one batch, by a randomised singular value decomposition of its rows.

        Args:
            weights: as for a reuse layer.
            generator: of the random directions; seed 0 when None.
            options: `mask`, `causal`, `axes`, as for a reuse layer.
        """
        rows = self._rows(source_of(weights, **options))  # (map, row, cell)
        self._enough(rows.shape[1])
        if generator is None:
            generator = torch.Generator(rows.device).manual_seed(0)
        mean = rows.mean(1, keepdim=True)
        rows = rows - mean
        components, values = _singular(rows, self.rank, generator)
        self._keep(mean[:, 0], components, values**2, (rows**2).sum((1, 2)))

    @torch.no_grad()
    def observe(self, weights: Any, **options: Any) -> None:
        """Add a batch to the sums that `settle` uses; the rows are not kept."""
        rows = self._rows(source_of(weights, **options))
        count = torch.tensor(rows.shape[1], dtype=torch.float64, device=rows.device)
        more = _Sums(count, rows.sum(1), rows.mT @ rows)
        so_far = self._sums
        self._sums = more if so_far is None else _Sums(*(a + b for a, b in zip(so_far, more)))

    @torch.no_grad()
    def settle(self) -> None:
        """Compute the components of all batches observed, and drop the sums."""
        if self._sums is None:
            raise RegardError("LowRankCode: settle() before any observe(weights)")
        count, total, products = self._sums
        self._enough(int(count))
        mean = total / count
        scatter = products - count * mean[:, :, None] * mean[:, None]
        values, vectors = torch.linalg.eigh(scatter)  # smallest first
        values, vectors = values.flip(-1).clamp_min(0.0), vectors.flip(-1)
        self._keep(mean, vectors[..., : self.rank], values[..., : self.rank], values.sum(-1))
        self._sums = None

    def _rows(self, source: Source) -> Tensor:
        """Rows that attend to something, resampled, in double precision: (map, row, cell)."""
        weights = rows_of("LowRankCode", source, self.n_heads, self.side, self.join)
        weights = weights.to(torch.float64)
        matrix = resampler(source, self.cells, self.resample, torch.float64)
        cells = weights @ matrix[:, None]  # (batch, map, query, cell)
        real = weights.detach().abs().sum((1, 3)) > 0  # (batch, query)
        rows = source.real_rows(self.side)
        real = real if rows is None else real & rows
        return cells.transpose(1, 2)[real].transpose(0, 1)

    def _enough(self, rows: int) -> None:
        if rows <= self.rank:
            raise RegardError(
                f"LowRankCode: {rows} rows of weights, expected more than rank={self.rank}"
            )

    def _keep(self, mean: Tensor, basis: Tensor, variance: Tensor, total: Tensor) -> None:
        """Store the components, with the sign that makes the largest entry positive."""
        peak = basis.gather(1, basis.abs().argmax(1, keepdim=True))
        self.mean.copy_(mean)
        self.basis.copy_(basis * torch.where(peak < 0, -1.0, 1.0))
        tiny = torch.finfo(total.dtype).tiny
        self.explained.copy_(variance / total.clamp_min(tiny)[:, None])
        self.fitted.fill_(True)
        self._ready = True

    def extra_repr(self) -> str:
        """Settings, for `print(module)`."""
        return f"{self.cells} cells to {self.channels} channels, rank {self.rank}"


def _after_loading(code: LowRankCode, keys: Any) -> None:
    code._ready = not code.fitted.is_meta and bool(code.fitted)


def _singular(rows: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The first right singular vectors (map, cell, rank) and values of rows (map, row, cell).

    Random directions, multiplied by the rows and back a few times, nearly span the first
    components; within that span the decomposition is small.
    """
    cells = rows.shape[-1]
    wide = min(rank + 8, cells, rows.shape[1])
    start = torch.randn(
        rows.shape[0], cells, wide, generator=generator, dtype=rows.dtype, device=rows.device
    )
    span = torch.linalg.qr(rows @ start).Q  # (map, row, wide)
    for _ in range(4):
        back = torch.linalg.qr(rows.mT @ span).Q
        span = torch.linalg.qr(rows @ back).Q
    small = torch.linalg.svd(span.mT @ rows, full_matrices=False)
    return small.Vh.mT[..., :rank], small.S[..., :rank]
