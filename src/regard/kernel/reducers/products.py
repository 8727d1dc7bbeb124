"""Products of the matrix with vectors: received mass, applied vectors, segments, distance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError, ShapeError, UnavailableError
from regard.kernel.reducers.base import Matrix, Sum


class ReceivedAttention(Sum):
    """Attention each key receives: Σᵢ wᵢ Aᵢⱼ, the row weights wᵢ being 1 unless given.

    Args:
        rows: a vector (query,) for an answer (batch, head, key); or several vectors,
            (batch or 1, head or 1, vector, query), for (batch, head, vector, key).
    """

    needs_log_weights = False
    stackable = True

    def __init__(
        self, rows: Float[Tensor, "*_"] | None = None, *, differentiable: bool = False
    ) -> None:
        super().__init__(differentiable=differentiable)
        self.rows = _vectors("ReceivedAttention: rows", rows)

    def start(self, matrix: Matrix) -> None:
        self.left = torch.ones(matrix.queries, dtype=matrix.dtype, device=matrix.device)
        if self.rows is not None:
            self.left = _of_matrix("ReceivedAttention: rows", self.rows, matrix, matrix.queries)
        self.total = matrix.zeros(*self.left.shape[-2:-1], matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., columns] += self.left[..., rows] @ weights


class ReceivedGradient(Sum):
    """Gradient times weights that each key receives: Σᵢ wᵢ [Gᵢⱼ Aᵢⱼ]⁺, (batch, head, vector, key).

    The gradient G by the weights is given as it is, or as the product of the output's gradient
    and the values, of which a tile at a time is made.

    Args:
        rows: the row weights w, (batch or 1, head or 1, vector, query); None for all 1.
        gradient: (batch, head, query, key), or (batch, head, query, width) with `value`.
        value: (batch, head or group, key, width).
        positive: whether what is below 0 counts as 0, before anything is added up.
    """

    needs_log_weights = False
    stackable = True

    def __init__(
        self,
        rows: Float[Tensor, "*_"] | None,
        gradient: Float[Tensor, "batch head query _"],
        value: Float[Tensor, "batch head key width"] | None = None,
        *,
        positive: bool = True,
    ) -> None:
        super().__init__()
        self.rows = _vectors("ReceivedGradient: rows", rows)
        self.gradient, self.value, self.positive = gradient, value, positive

    def start(self, matrix: Matrix) -> None:
        self.left = torch.ones(1, matrix.queries, dtype=matrix.dtype, device=matrix.device)
        if self.rows is not None:
            self.left = _of_matrix("ReceivedGradient: rows", self.rows, matrix, matrix.queries)
        self._check(matrix)
        self.of_head = matrix.own_head(self.gradient)
        self.across = None if self.value is None else matrix.own_head(self.value).mT
        self.total = matrix.zeros(*self.left.shape[-2:-1], matrix.keys)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        if self.across is None:
            product = self.of_head[..., rows, columns].to(weights.dtype) * weights
        else:
            gradient, across = self.of_head[..., rows, :], self.across[..., columns]
            product = (gradient.to(weights.dtype) @ across.to(weights.dtype)).mul_(weights)
        if self.positive:
            product.clamp_min_(0.0)
        self.total[..., columns] += self.left[..., rows] @ product

    def _check(self, matrix: Matrix) -> None:
        value = self.value
        last = matrix.keys if value is None else value.shape[-1]
        wanted = (matrix.examples, matrix.heads, matrix.queries, last)
        if tuple(self.gradient.shape) != wanted:
            raise ShapeError(
                f"ReceivedGradient: gradient is {tuple(self.gradient.shape)}, expected {wanted}"
            )
        if value is not None and (
            value.shape[0] != matrix.examples
            or value.shape[2] != matrix.keys
            or matrix.heads % value.shape[1]
        ):
            raise ShapeError(
                f"ReceivedGradient: value is {tuple(value.shape)}, expected ({matrix.examples}, "
                f"{matrix.heads} or a divisor, {matrix.keys}, width)"
            )


class WeightedSum(Sum):
    """The matrix times vectors over the keys: Σⱼ Aᵢⱼ xⱼ.

    Args:
        vectors: (key,) for an answer (batch, head, query); or several,
            (batch or 1, head or 1, vector, key), for (batch, head, vector, query).
    """

    needs_log_weights = False
    stackable = True

    def __init__(self, vectors: Float[Tensor, "*_"], *, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        self.vectors = _vectors("WeightedSum: vectors", vectors)

    def start(self, matrix: Matrix) -> None:
        assert self.vectors is not None
        self.right = _of_matrix("WeightedSum: vectors", self.vectors, matrix, matrix.keys)
        self.total = matrix.zeros(*self.right.shape[-2:-1], matrix.queries)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., rows] += self.right[..., columns] @ weights.mT


class SegmentWeights(Sum):
    """Weight each query gives to each segment of keys, (batch, head, query, segment).

    Args:
        segments: the segment number of every key, (key,) or (batch, key), from 0.
        n_segments: how many there are; the largest number plus one when None.
    """

    needs_log_weights = False
    stackable = True

    def __init__(
        self,
        segments: Int[Tensor, "*_"],
        n_segments: int | None = None,
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__(differentiable=differentiable)
        self.segments = _segments("SegmentWeights", segments)
        most = int(self.segments.max()) if self.segments.numel() else -1
        self.n_segments = most + 1 if n_segments is None else n_segments
        if most >= self.n_segments or (self.segments < 0).any():
            raise RegardError(
                f"SegmentWeights: segment numbers must be from 0 to {self.n_segments - 1}"
            )

    def start(self, matrix: Matrix) -> None:
        _check_segments("SegmentWeights", self.segments, matrix)
        numbers = matrix.own(self.segments).to(matrix.device)
        self.member = F.one_hot(numbers, self.n_segments).to(matrix.dtype)  # (…, key, segment)
        self.total = matrix.zeros(matrix.queries, self.n_segments)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., rows, :] += weights @ self.member[..., columns, :]


class OwnSegment(Sum):
    """Weight each query gives to the keys of its own segment, (batch, head, query).

    Queries are the last positions of the keys. The query itself is of its segment.

    Args:
        segments: the segment number of every key, (key,) or (batch or 1, key); what is below 0
            belongs to none.
    """

    needs_log_weights = False
    stackable = True

    def __init__(self, segments: Int[Tensor, "*_"], *, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        self.segments = _segments("OwnSegment", segments)

    def start(self, matrix: Matrix) -> None:
        _check_segments("OwnSegment", self.segments, matrix)
        if matrix.queries > matrix.keys:
            raise ShapeError(
                f"OwnSegment: {matrix.queries} queries for {matrix.keys} keys; segments are of one "
                "sequence, whose last positions are the queries"
            )
        self.theirs = matrix.own(self.segments).to(matrix.device)
        mine = self.theirs[..., matrix.keys - matrix.queries :]
        self.mine = mine.masked_fill(mine < 0, -2)  # unlike any key's
        self.total = matrix.zeros(matrix.queries)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        theirs = self.theirs.clamp_min(-1)[..., None, columns]
        same = self.mine[..., rows, None] == theirs
        self.total[..., rows] += (weights * same).sum(-1)


class Distance(Sum):
    """Mean distance |i − j| from each query to what it attends to, (batch, head, query).

    Positions are aligned at the end, as for causal masks. `signed=True` gives the mean of j − i,
    negative for looking back. A row is not renormalised: one that attends to nothing gives 0.

    Where the recipe has a `grid`, positions lie in an image, and the distance is the length of
    (dy, dx), √(dy² + dx²), with one position as its unit.
    """

    needs_log_weights = False
    stackable = True

    def __init__(self, *, signed: bool = False, differentiable: bool = False) -> None:
        super().__init__(differentiable=differentiable)
        self.signed = signed

    def start(self, matrix: Matrix) -> None:
        if matrix.grid is not None:
            self._check_grid(matrix, matrix.grid)
        self.total = matrix.zeros(matrix.queries)

    def _check_grid(self, matrix: Matrix, grid: tuple[int, int]) -> None:
        if self.signed:
            raise UnavailableError(
                f"Distance: signed=True, but keys are positions of a {grid[0]} × {grid[1]} image, "
                "where a direction is (dy, dx): Distance() gives its length, recipe.offsets() both"
            )
        if matrix.queries != matrix.keys:
            raise UnavailableError(
                f"Distance: {matrix.queries} queries, but keys are the positions of a {grid[0]} × "
                f"{grid[1]} image, expected {matrix.keys} queries, one for each: elsewhere they "
                "have no distance to them"
            )

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        if self.matrix.grid is not None:
            width = self.matrix.grid[1]
            here, there = (_range(where, weights) for where in (rows, columns))
            down = there // width - (here // width)[:, None]
            across = there % width - (here % width)[:, None]
            self.total[..., rows] += (weights * torch.hypot(down, across)).sum(-1)
            return
        shift = self.matrix.keys - self.matrix.queries
        here = _range(rows, weights) + shift
        there = _range(columns, weights)
        behind = columns.stop - 1 <= rows.start + shift
        ahead = columns.start >= rows.stop - 1 + shift
        if behind or ahead:  # j − i has one sign: two vector products do
            edge = columns.stop - 1 if behind else columns.start  # from 0, j and i would cancel
            moved = weights @ (there - edge) - (here - edge) * weights.sum(-1)
            self.total[..., rows] += -moved if behind and not self.signed else moved
        else:
            moved = there - here[:, None]
            self.total[..., rows] += (weights * (moved if self.signed else moved.abs())).sum(-1)


def _range(where: slice, like: Tensor) -> Tensor:
    return torch.arange(where.start, where.stop, dtype=like.dtype, device=like.device)


def _segments(reducer: str, segments: Tensor) -> Tensor:
    """Numbers of segments as (batch or 1, key)."""
    if segments.is_floating_point():
        raise RegardError(f"{reducer}: segments are {segments.dtype}, expected whole numbers")
    if segments.dim() not in (1, 2):
        raise ShapeError(
            f"{reducer}: segments has {segments.dim()} axes, expected (key,) or (batch, key)"
        )
    return segments if segments.dim() == 2 else segments[None]


def _check_segments(reducer: str, segments: Tensor, matrix: Matrix) -> None:
    for axis, size, wanted in zip(("batch", "key"), segments.shape, (matrix.examples, matrix.keys)):
        if size != wanted and not (axis == "batch" and size == 1):
            raise ShapeError(f"{reducer}: segments: axis {axis} has size {size}, expected {wanted}")


def _vectors(argument: str, vectors: Tensor | None) -> Tensor | None:
    if vectors is not None and vectors.dim() not in (1, 4):
        raise ShapeError(
            f"{argument} has {vectors.dim()} axes {tuple(vectors.shape)}, expected (position,) or "
            "(batch or 1, head or 1, vector, position)"
        )
    return vectors


def _of_matrix(argument: str, vectors: Tensor, matrix: Matrix, length: int) -> Tensor:
    """The vectors that belong to one matrix."""
    if vectors.shape[-1] != length:
        raise ShapeError(f"{argument}: last axis has size {vectors.shape[-1]}, expected {length}")
    if vectors.dim() == 4:
        for axis, size, want in zip(
            ("batch", "head"), vectors.shape, (matrix.examples, matrix.heads)
        ):
            if size not in (1, want):
                raise ShapeError(f"{argument}: axis {axis} has size {size}, expected {want} or 1")
        vectors = matrix.own_head(vectors)
    return vectors.to(matrix.device, matrix.dtype)
