"""Makes tiles of log-weights and weights out of a recipe.

For a dot product one matrix product gives a tile of log-weights, because −log-sum-exp rides in
one more column of the query against ones in the key; the scale rides on the key.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from regard.bias import Bias, bias_at, bias_block
from regard.masks import clean
from regard.masks.parts import Band, Mask
from regard.recipe import Dot, Edges, Recipe, Recurrent, Softmaxed
from regard.recipe.base import logarithms
from regard.softmax import exp
from regard.types import NEVER, Block, pieces

_MASKED = 512  # columns of a mask looked at together
Tile = tuple[Tensor | None, Tensor | None]  # log-weights and weights


class Needs(NamedTuple):
    """What the reducers of a walk look at; without log-weights, weights take their memory."""

    logs: bool
    weights: bool


def tile_maker(recipe: Recipe, size: tuple[int, int]) -> TileMaker:
    """The fastest maker that serves this recipe."""
    if isinstance(recipe, Softmaxed):
        recipe = recipe.with_lse()
    by_row = isinstance(recipe, Softmaxed) and (recipe.absorbs or not recipe.is_softmax)
    if by_row or isinstance(recipe, Recurrent):  # whole rows, each made once
        return TileMaker(recipe, (size[0], max(1, recipe.shape.keys)))
    if isinstance(recipe, Edges):
        return EdgeTileMaker(recipe.plain(), size)
    return DotTileMaker(recipe, size) if isinstance(recipe, Dot) else TileMaker(recipe, size)


class TileMaker:
    """Tiles of any recipe, by its own formula."""

    def __init__(self, recipe: Recipe, size: tuple[int, int]) -> None:
        self.recipe = recipe
        self.rows, self.breadth = size
        self._buffers = threading.local()

    def prepare(self, batch: int, heads: range) -> Any:
        """What the tiles of these heads of an example share."""
        return [self.recipe.at(batch, head) for head in heads]

    def queries(self, prepared: Any, rows: slice) -> Any:
        """What the tiles of a block of rows share."""
        return None

    def columns(self, rows: slice) -> Iterator[slice]:
        """Blocks of columns in which these rows may attend to something."""
        _, _, queries, keys = self.recipe.shape
        seen = slice(0, keys)
        mask = getattr(self.recipe, "mask", None)
        if mask is not None:
            seen = mask.columns(rows, queries, keys)
        return pieces(seen.stop, self.breadth, seen.start)

    def tile(
        self, prepared: Any, queries: Any, index: int, rows: slice, columns: slice, needs: Needs
    ) -> Tile | None:
        """The tile of the head at `index`, or None where nothing may attend."""
        matrix: Recipe = prepared[index]
        if not needs.logs:  # signed weights have no logarithm
            return None, matrix.weights(rows, columns)[0, 0]
        logs = matrix.log_weights(Block.of(rows, columns, *self.recipe.shape[2:]))[0, 0]
        return logs, exp(logs).masked_fill_(logs <= NEVER / 2, 0.0) if needs.weights else None

    def tile_buffer(self, name: str, height: int, breadth: int) -> Tensor:
        """Memory for a tile, of the size that the widest one will need."""
        return self.buffer(name, height, breadth, room=height * self.breadth)

    def buffer(self, name: str, *shape: int, room: int = 0) -> Tensor:
        """A block of memory of this thread, reused, because getting it costs more than a tile."""
        held: dict[Any, Tensor] = self._buffers.__dict__
        view = held.get((name, shape))
        if view is None:  # the first block of rows is the highest: what fits it fits the others
            size, dtype = math.prod(shape), self.recipe.dtype
            if name not in held or held[name].numel() < size:
                held[name] = torch.empty(max(size, room), dtype=dtype, device=self.recipe.device)
            view = held[name, shape] = held[name][:size].view(shape)
        return view


class RowEdges(NamedTuple):
    """The edges of a block of rows, sorted by the block of columns they lie in."""

    rows: Tensor  # (edge,), counted from the first row of the block
    columns: Tensor  # (edge,)
    weights: Tensor  # (edge,)
    starts: list[int]  # where the edges of each block of columns begin, and the last ones end


class EdgeTileMaker(TileMaker):
    """Tiles of a list of edges sorted by row; tiles without an edge are skipped."""

    recipe: Edges

    def queries(self, prepared: list[Edges], rows: slice) -> list[RowEdges]:
        return [self._row_edges(matrix, rows) for matrix in prepared]

    def _row_edges(self, matrix: Edges, rows: slice) -> RowEdges:
        assert matrix.row_starts is not None
        first, last = (int(matrix.row_starts[0, 0, row]) for row in (rows.start, rows.stop))
        columns = matrix.key_index[0, 0, first:last]
        blocks, order = (columns // self.breadth).sort()
        ends = torch.bincount(blocks, minlength=-(-matrix.keys // self.breadth)).cumsum(0)
        return RowEdges(
            matrix.query_index[0, 0, first:last][order] - rows.start,
            columns[order],
            matrix.edge_weights[0, 0, first:last].to(matrix.dtype)[order],
            [0, *ends.tolist()],
        )

    def tile(
        self,
        prepared: list[Edges],
        queries: list[RowEdges],
        index: int,
        rows: slice,
        columns: slice,
        needs: Needs,
    ) -> Tile | None:
        edges, block = queries[index], columns.start // self.breadth
        here = slice(edges.starts[block], edges.starts[block + 1])
        if here.start == here.stop:
            return None
        height, breadth = rows.stop - rows.start, columns.stop - columns.start
        cells = edges.rows[here] * breadth + (edges.columns[here] - columns.start)
        weights = self.tile_buffer("weights", height, breadth).zero_()
        weights.view(-1).index_add_(0, cells, edges.weights[here])
        if not needs.logs:
            return None, weights
        logs = self.tile_buffer("logs", height, breadth).fill_(NEVER)
        sums = weights.view(-1)[cells]  # an edge listed twice has its sum in both
        logs.view(-1)[cells] = logarithms(sums, self.recipe.kind)
        return logs, weights if needs.weights else None


class Prepared(NamedTuple):
    """What the dot-product tiles of some heads of one example are made from."""

    queries: Tensor  # (head, query, width)
    minus_lse: Tensor  # (head, query, 1)
    keys: list[Tensor]  # (width + 1, key) for each head, ones in the last row
    masks: list[Mask | None]
    biases: list[Tensor | Bias | None]


class Permit(NamedTuple):
    """A block of a mask as numbers: to add to log-weights, to multiply weights with."""

    logs: Tensor | float
    weights: Tensor | float
    columns: slice = slice(None)  # of the tile


_NOTHING = Permit(NEVER, 0.0)
_NONE: list[Permit] = []


class DotTileMaker(TileMaker):
    """Tiles of a dot-product recipe: one product gives log-weights."""

    recipe: Dot

    def __init__(self, recipe: Dot, size: tuple[int, int]) -> None:
        super().__init__(recipe, size)
        self.alive = (
            None if recipe.mask is None else recipe.mask.alive(*recipe.shape[2:], recipe.device)
        )
        self.deep = recipe.softcap is not None or _far_out(recipe)
        self.bands: dict[tuple[int, int, int], Permit] = {}
        self.plans: dict[tuple[int, int, int, int], list[Permit] | None] = {}

    def prepare(self, batch: int, heads: range) -> Prepared:
        recipe, which = self.recipe, slice(heads[0], heads[-1] + 1)
        share = recipe.query.shape[1] // recipe.key.shape[1]
        first, last = heads[0] // share, heads[-1] // share
        key = recipe.key[batch : batch + 1, first : last + 1]
        if self.alive is not None:  # NaN in padding must not reach a product
            example = slice(batch, batch + 1) if self.alive.shape[0] > 1 else slice(None)
            served = slice(first * share, (last + 1) * share)
            key = clean(
                key, self.alive[example, served if self.alive.shape[1] > 1 else slice(None)]
            )
        keys = self.buffer("keys", last + 1 - first, key.shape[2], key.shape[3] + 1)
        keys[..., :-1].copy_(key[0]).mul_(recipe.scale)
        keys[..., -1] = 1.0
        assert recipe.lse is not None
        lse = recipe.lse[batch, which, :, None].to(recipe.dtype)
        queries = recipe.query[batch, which]
        return Prepared(
            queries,
            -lse,
            [keys[head // share - first].T for head in heads],
            [None if recipe.mask is None else recipe.mask.at(batch, head) for head in heads],
            [bias_at(recipe.bias, batch, head) for head in heads],
        )

    def queries(self, prepared: Prepared, rows: slice) -> Tensor:
        """Queries with −log-sum-exp in one more column, (head, row, width + 1)."""
        query, minus = prepared.queries[:, rows], prepared.minus_lse[:, rows]
        heads, height, width = query.shape
        out = self.buffer("queries", heads, height, width + 1)
        return torch.cat([query.to(out.dtype), minus], dim=-1, out=out)

    def tile(
        self,
        prepared: Prepared,
        queries: Tensor,
        index: int,
        rows: slice,
        columns: slice,
        needs: Needs,
    ) -> Tile | None:
        mask, bias = prepared.masks[index], prepared.biases[index]
        permits = _NONE if mask is None else self._permits(mask, rows, columns)
        if permits is None:
            return None
        height, breadth = rows.stop - rows.start, columns.stop - columns.start
        logs = self.tile_buffer("logs", height, breadth)
        key = prepared.keys[index][:, columns]
        if self.recipe.softcap is None:
            torch.mm(queries[index], key, out=logs)
        else:
            torch.mm(queries[index, :, :-1], key[:-1], out=logs)
            logs.div_(self.recipe.softcap).tanh_().mul_(self.recipe.softcap)
            logs.add_(queries[index, :, -1:])
        if bias is not None:
            added = bias_block(bias, Block.of(rows, columns, *self.recipe.shape[2:]))
            assert added is not None
            logs.add_(added[0, 0].to(logs.dtype)).clamp_min_(NEVER)
        out = self.tile_buffer("weights", height, breadth) if needs.logs else logs
        if self.deep or bias is not None:
            weights = _careful(logs, permits, needs, out)
        else:
            weights = _quick(logs, permits, needs, out)
        return (logs if needs.logs else None), weights

    def _permits(self, mask: Mask, rows: slice, columns: slice) -> list[Permit] | None:
        """What to do to the columns of a block where some pair is forbidden; None: all are."""
        key = (rows.start, rows.stop, columns.start, columns.stop)
        if key in self.plans:
            return self.plans[key]
        permits = self._look(mask, Block.of(rows, columns, *self.recipe.shape[2:]))
        if isinstance(mask, Band):  # the same for every head and example
            self.plans[key] = permits
        return permits

    def _look(self, mask: Mask, block: Block) -> list[Permit] | None:
        permits, seen = [], False
        for columns in pieces(block.right, _MASKED, block.left):
            permit = self._permit(mask, block.over(columns))
            seen = seen or permit is not False
            if permit is not None:
                start = columns.start - block.left
                here = slice(start, start + columns.stop - columns.start)
                permits.append(
                    _NOTHING._replace(columns=here)
                    if permit is False
                    else permit._replace(columns=here)
                )
        return permits if seen else None

    def _permit(self, mask: Mask, block: Block) -> Permit | Literal[False] | None:
        """How to forbid pairs of a block: None where all may attend, False where none may."""
        key = (block.left - block.top, block.height, block.breadth)
        band = isinstance(mask, Band) and block.left >= mask.first
        if band and key in self.bands:
            return self.bands[key]
        allowed = mask.block(block, self.recipe.device)
        if isinstance(allowed, bool):
            return None if allowed else False
        keep = allowed[0, 0].to(self.recipe.dtype)
        total = 1.0 if band else float(keep.sum())
        if not band and total in (0, keep.numel()):
            return None if total else False
        permit = Permit((1.0 - keep).mul_(NEVER), keep)
        if band:  # a band looks the same all along the diagonal
            self.bands[key] = permit
        return permit


def _quick(logs: Tensor, permits: list[Permit], needs: Needs, out: Tensor) -> Tensor | None:
    """Weights where no exponential can leave the normal numbers, forbidden pairs included."""
    weights = torch.exp(logs, out=out) if needs.weights else None
    for permit in permits:
        if weights is not None:
            weights[:, permit.columns].mul_(permit.weights)
        if needs.logs:
            logs[:, permit.columns].add_(permit.logs)
    return weights


def _careful(logs: Tensor, permits: list[Permit], needs: Needs, out: Tensor) -> Tensor | None:
    """Weights where a score may be anything: forbid first, and never let exp underflow."""
    logs.clamp_max_(0.0)  # a forbidden score may be anything, up to infinity
    for permit in permits:
        logs[:, permit.columns].add_(permit.logs)
    if not needs.weights:
        return None
    gone = logs <= NEVER / 2
    return exp(logs, out=out).masked_fill_(gone, 0.0)


def _far_out(recipe: Dot) -> bool:
    """Whether |log-weight| may pass 80; Cauchy and Schwarz bound each score by the norms.

    Beyond 87 an exponential leaves float32, and on the way there it is up to 250 times slower.
    """
    if 0 in recipe.shape or recipe.lse is None:
        return False
    longest = [
        torch.linalg.vector_norm(tensor, dim=-1, dtype=recipe.dtype).max()
        for tensor in (recipe.query, recipe.key)
    ]
    bound = abs(recipe.scale) * longest[0] * longest[1] + recipe.lse.abs().max()
    return not float(bound) < 80.0  # NaN in padding counts as far out
