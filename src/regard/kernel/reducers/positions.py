"""Attention by where a key stands to its query: at which distance, or after which earlier copy."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from regard.errors import RegardError, ShapeError
from regard.kernel.reducers.base import Matrix, Sum


class Offsets(Sum):
    """Attention by relative position, summed over the queries: (batch, head, offset).

    Place `keys − 1 + d` of the answer is the sum of the weights from i to i + d, so that the
    query itself is at `keys − 1` and the key before it one place lower. There are
    queries + keys − 1 places. Positions are aligned at the end, as for causal masks.

    Args:
        rows: which queries count, (query,) or (batch or 1, query); all when None.
        keys: which keys count, (key,) or (batch or 1, key); all when None.
    """

    needs_log_weights = False
    stackable = True

    def __init__(
        self,
        rows: Shaped[Tensor, "*_"] | None = None,
        keys: Shaped[Tensor, "*_"] | None = None,
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__(differentiable=differentiable)
        self.rows = _by_example("Offsets: rows", rows)
        self.keys = _by_example("Offsets: keys", keys)

    def start(self, matrix: Matrix) -> None:
        self.left = _of_example("Offsets: rows", self.rows, matrix, matrix.queries)
        self.keep = _of_example("Offsets: keys", self.keys, matrix, matrix.keys)
        self.total = matrix.zeros(max(0, matrix.queries + matrix.keys - 1))
        self.room: Tensor | None = None

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        height, breadth = weights.shape[-2:]
        if not height or not breadth:
            return
        first = columns.start + self.matrix.queries - rows.stop  # place of the lowest offset
        left = self.left[..., None, rows]  # (…, 1, row)
        sums = left @ self._upright(weights, self.keep[..., None, columns])
        self.total[..., first : first + height + breadth - 1] += sums[..., 0, :]

    def _upright(self, weights: Tensor, keep: Tensor) -> Tensor:
        """The same as `upright`, in memory that is kept for the next tile."""
        if torch.is_grad_enabled():
            return upright(weights * keep)
        *stacked, height, breadth = weights.shape
        size = height * (height + breadth + 1)
        if self.room is None or self.room.shape[-1] != size:
            self.room = weights.new_zeros(*stacked, size)
        inside = self.room[..., : height * (height + breadth)]
        torch.mul(weights, keep, out=inside.unflatten(-1, (height, -1))[..., height:])
        longer: Tensor = self.room.unflatten(-1, (height, -1))
        return longer[..., 1:-1]


def upright(
    weights: Float[Tensor, "*lead row column"],
) -> Float[Tensor, "*lead row row_and_column_but_one"]:
    """Each row moved one place further left than the row above, so that diagonals stand upright.

    Rows get as many zeros in front as there are rows; read with rows that are one place longer,
    each begins one place later.
    """
    height, breadth = weights.shape[-2:]
    flat = F.pad(weights, (height, 0)).flatten(-2)
    longer: Tensor = F.pad(flat, (0, height)).unflatten(-1, (height, height + breadth + 1))
    return longer[..., 1:-1]


class Repeats(Sum):
    """Weight each query gives to earlier copies of its token, or to what followed them.

    With `after=0` the answer, (batch, head, query), is the weight on keys whose token is that of
    the query; with `after=1` the weight on the keys that come one place after such a key, which an
    induction head attends to. Keys count up to two places before the query: its neighbour and the
    query itself are left out, or every previous-token head would score on doubled words.

    Args:
        tokens: the number of each key's token, (key,) or (batch or 1, key). Queries are the last
            positions of the keys.
        after: how many places after the copy.
        keys: which keys count, (key,) or (batch or 1, key); all when None.
    """

    needs_log_weights = False
    stackable = True

    def __init__(
        self,
        tokens: Int[Tensor, "*_"],
        after: int = 0,
        keys: Bool[Tensor, "*_"] | None = None,
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__(differentiable=differentiable)
        if tokens.is_floating_point():
            raise RegardError(f"Repeats: tokens are {tokens.dtype}, expected whole numbers")
        if after < 0:
            raise RegardError(f"Repeats: after={after}, expected 0 or more places")
        self.after = after
        self.tokens, keep = _told_apart(tokens, _by_example("Repeats: keys", keys))
        self.labels = torch.full_like(self.tokens, -1)  # the token whose copy stands before a key
        self.labels[:, after:] = self.tokens[:, : max(0, self.tokens.shape[1] - after)]
        if keep is not None:
            self.labels = torch.where(keep, self.labels, -1)

    def start(self, matrix: Matrix) -> None:
        tokens = _of_example("Repeats: tokens", self.tokens, matrix, matrix.keys)
        self.mine = tokens[..., matrix.keys - matrix.queries :]
        self.theirs = _of_example("Repeats: keys", self.labels, matrix, matrix.keys)
        if matrix.queries > matrix.keys:
            raise ShapeError(
                f"Repeats: {matrix.queries} queries for {matrix.keys} keys; copies are looked for "
                "in one sequence, whose last positions are the queries"
            )
        self.total = matrix.zeros(matrix.queries)
        self.room: Tensor | None = None

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        reach = rows.start + self.matrix.keys - self.matrix.queries - 2 - columns.start
        if reach + rows.stop - rows.start <= 0:  # no key lies before its query
            return
        mine, theirs = self.mine[..., rows, None], self.theirs[..., None, columns]
        if torch.is_grad_enabled() or self.matrix.stacked:
            same = (mine == theirs).to(weights.dtype) * weights
        else:
            if self.room is None or self.room.shape != weights.shape:
                self.room = torch.empty_like(weights)
            same = torch.eq(mine, theirs, out=self.room).mul_(weights)
        if reach < columns.stop - columns.start - 1:
            same = same.tril_(reach)
        self.total[..., rows] += same.sum(-1)

    def counts(
        self, keys: Int[Tensor, "batch head column"], queries: int
    ) -> Bool[Tensor, "batch head query column"]:
        """Whether some keys of each head are such copies, for the last `queries` positions."""
        length = self.tokens.shape[1]
        labels = self.labels[:, None].expand(*keys.shape[:2], length).gather(2, keys)
        own = torch.arange(length - queries, length, device=keys.device)[:, None]
        same = labels[:, :, None] == self.tokens[:, None, length - queries :, None]
        return same & (keys[:, :, None] <= own - 2)

    def found(self, queries: int) -> Bool[Tensor, "batch query"]:
        """Which of the last `queries` positions have a copy that counts, (batch or 1, query)."""
        keys = self.tokens.shape[1]
        places = torch.arange(keys, device=self.tokens.device).expand_as(self.tokens)
        earliest = torch.full((self.tokens.numel(),), keys, device=self.tokens.device)
        labelled = self.labels >= 0
        earliest.scatter_reduce_(0, self.labels[labelled], places[labelled], "amin")
        return (earliest[self.tokens] <= places - 2)[:, keys - queries :]


def _told_apart(tokens: Tensor, keys: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Tokens numbered anew from 0, with numbers of their own in each example.

    Small whole numbers are exact as floats, and comparing floats is the fastest.
    """
    numbers = _by_example("Repeats: tokens", tokens)
    assert numbers is not None
    if keys is not None:
        if keys.shape[1] != numbers.shape[1]:
            raise ShapeError(
                f"Repeats: keys: axis position has size {keys.shape[1]}, expected "
                f"{numbers.shape[1]} as tokens"
            )
        numbers, keys = torch.broadcast_tensors(numbers, keys.to(numbers.device, torch.bool))
    words, numbers = numbers.unique(return_inverse=True)
    example = torch.arange(len(numbers), device=numbers.device)[:, None]
    return (numbers + example * len(words)).unique(return_inverse=True)[1], keys


def _by_example(argument: str, tensor: Tensor | None) -> Tensor | None:
    """Marks of positions as (batch or 1, position)."""
    if tensor is None or tensor.dim() == 2:
        return tensor
    if tensor.dim() != 1:
        raise ShapeError(
            f"{argument} has {tensor.dim()} axes {tuple(tensor.shape)}, expected (position,) or "
            "(batch or 1, position)"
        )
    return tensor[None]


def _of_example(argument: str, tensor: Tensor | None, matrix: Matrix, length: int) -> Any:
    """The marks of one matrix, as numbers; 1 everywhere when none are given."""
    if tensor is None:
        return matrix.zeros(length).add_(1.0)
    if tensor.shape[1] != length:
        raise ShapeError(f"{argument}: axis position has size {tensor.shape[1]}, expected {length}")
    if tensor.shape[0] not in (1, matrix.examples):
        raise ShapeError(
            f"{argument}: axis batch has size {tensor.shape[0]}, expected {matrix.examples} or 1"
        )
    return matrix.own(tensor).to(matrix.device, matrix.dtype)
