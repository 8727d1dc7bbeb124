"""Walks a recipe block by block and feeds the tiles to reducers.

Three tiers answer a question. A reducer's `shortcut` needs only a few entries, or an identity
over a fused kernel. Otherwise tiles are made: for a dot product one matrix product gives a tile
of log-weights, because −log-sum-exp rides in one more column of the scaled query against ones in
the key. Blocks where nothing may attend are skipped.

Thousands of small parallel products lose badly when two threads share each one, so torch's own
threads are set to one for the duration, and Python threads take whole matrices or rows instead.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import RegardError
from regard.kernel.reduce import Matrix, Reducer
from regard.masks import clean
from regard.masks.parts import Band, Mask
from regard.recipe import Bias, Dot, Recipe, bias_at, bias_block, exp
from regard.types import NEVER, Block, Shape, pieces

ROWS, COLUMNS = 256, 512  # a tile of float32 stays in a core's cache
_WORTH_THREADS = 1 << 21  # weights below which starting threads costs more than it gives


def reduce(
    recipe: Recipe, reducers: Sequence[Reducer], *, tile: tuple[int, int] = (ROWS, COLUMNS)
) -> tuple[Any, ...]:
    """The reducers' answers about a recipe, in the order asked.

    Answers are stacked over (batch, head), or over batch for a reducer across heads.
    """
    for reducer in reducers:
        if not isinstance(reducer, Reducer):
            raise RegardError(f"reduce: {reducer!r} is not a Reducer; pass instances, as Entropy()")
    answers: dict[int, Any] = {}
    inside = [index for index, reducer in enumerate(reducers) if reducer.differentiable]
    for index in inside:
        answers[index] = _dense(recipe, reducers[index])
    with torch.no_grad():
        detached = recipe.detach()
        waiting = []
        for index, reducer in enumerate(reducers):
            if index not in answers:
                answers[index] = reducer.shortcut(detached)
                if answers[index] is None:
                    waiting.append(index)
        if waiting:
            found = _walk(detached, [reducers[index] for index in waiting], tile)
            answers.update(zip(waiting, found))
    return tuple(answers[index] for index in range(len(reducers)))


def _dense(recipe: Recipe, reducer: Reducer) -> Any:
    """One big tile for each matrix, inside the autograd graph."""
    _, _, queries, keys = recipe.shape
    block = Block(slice(0, queries), slice(0, keys), queries, keys)
    logs = recipe.log_weights(block)
    weights = exp(logs).masked_fill(logs <= NEVER / 2, 0.0)
    results = []
    for batch, heads in _matrices(recipe.shape, reducer.across_heads):
        state = reducer.started(_matrix(recipe, batch, heads))
        for head in heads:
            state.tile(block.rows, block.columns, logs[batch, head], weights[batch, head])
        results.append(state.result())
    return _stack(results, recipe.shape, reducer.across_heads)


def _walk(recipe: Recipe, reducers: list[Reducer], tile: tuple[int, int]) -> list[Any]:
    shape = recipe.shape
    together = any(reducer.across_heads for reducer in reducers)
    groups = list(_matrices(shape, together))
    source = _DotTiles(recipe, tile) if isinstance(recipe, Dot) else _Tiles(recipe, tile)
    threads = torch.get_num_threads() if math.prod(shape) >= _WORTH_THREADS else 1
    finished: dict[tuple[int, range], list[list[Reducer]]] = {}

    def run_group(group: tuple[int, range]) -> None:
        finished[group] = _Group(source, reducers, *group).run(1, None)

    with _one_torch_thread():
        if threads == 1:
            for group in groups:
                run_group(group)
        else:
            with ThreadPoolExecutor(threads) as pool:
                if len(groups) >= threads:
                    list(pool.map(_without_grad(run_group), groups))
                else:
                    for group in groups:
                        finished[group] = _Group(source, reducers, *group).run(threads, pool)

    found = []
    for index, reducer in enumerate(reducers):
        results = [state.result() for group in groups for state in finished[group][index]]
        found.append(_stack(results, shape, reducer.across_heads))
    return found


class _Group:
    """The heads of one example that are walked together: all of them, or one."""

    def __init__(self, source: _Tiles, reducers: list[Reducer], batch: int, heads: range) -> None:
        self.source, self.batch, self.heads = source, batch, heads
        recipe = source.recipe
        self.states = [
            [reducer.started(_matrix(recipe, batch, heads))]
            if reducer.across_heads
            else [reducer.started(_matrix(recipe, batch, [head])) for head in heads]
            for reducer in reducers
        ]
        self.needs = _Needs(
            any(reducer.needs_log_weights for reducer in reducers),
            any(reducer.needs_weights for reducer in reducers),
        )

    def run(self, threads: int, pool: ThreadPoolExecutor | None) -> list[list[Reducer]]:
        prepared = self.source.prepare(self.batch, self.heads)
        jobs = iter(list(pieces(self.source.recipe.shape.queries, self.source.rows)))
        if threads == 1 or pool is None:
            self._rows(prepared, jobs, self.states)
            return self.states
        forks = [[[s.fork() for s in states] for states in self.states] for _ in range(threads - 1)]
        shares = [self.states, *forks]
        work = _without_grad(lambda states: self._rows(prepared, jobs, states))
        list(pool.map(work, shares))
        for fork in forks:
            for states, others in zip(self.states, fork):
                for state, other in zip(states, others):
                    state.merge(other)
        return self.states

    def _rows(self, prepared: Any, jobs: Iterator[slice], states: list[list[Reducer]]) -> None:
        """Walk the row blocks that `jobs` hands out; several threads may share `jobs`."""
        source = self.source
        for rows in jobs:
            queries = source.queries(prepared, rows)
            for columns in source.columns(rows):
                for place in range(len(self.heads)):
                    tile = source.tile(prepared, queries, place, rows, columns, self.needs)
                    if tile is None:
                        continue
                    for group in states:
                        state = group[0] if len(group) == 1 else group[place]
                        state.tile(rows, columns, *tile)


class _Tiles:
    """Tiles of any recipe, by its own formula."""

    def __init__(self, recipe: Recipe, tile: tuple[int, int]) -> None:
        self.recipe = recipe
        self.rows, self.breadth = tile
        self._buffers = threading.local()

    def prepare(self, batch: int, heads: range) -> Any:
        return [self.recipe.at(batch, head) for head in heads]

    def queries(self, prepared: Any, rows: slice) -> Any:
        return None

    def columns(self, rows: slice) -> Iterator[slice]:
        _, _, queries, keys = self.recipe.shape
        seen = slice(0, keys)
        mask = getattr(self.recipe, "mask", None)
        if mask is not None:
            seen = mask.columns(rows, queries, keys)
        return pieces(seen.stop, self.breadth, seen.start)

    def tile(
        self, prepared: Any, queries: Any, place: int, rows: slice, columns: slice, needs: _Needs
    ) -> tuple[Tensor | None, Tensor | None] | None:
        """Log-weights and weights of a block, or None where nothing may attend."""
        block = Block(rows, columns, *self.recipe.shape[2:])
        logs: Tensor = prepared[place].log_weights(block)[0, 0]
        if not needs.weights:
            return logs, None
        return logs, exp(logs).masked_fill_(logs <= NEVER / 2, 0.0)

    def buffer(self, name: str, *shape: int) -> Tensor:
        """A reused block of memory of this thread."""
        held: dict[Any, Tensor] = self._buffers.__dict__
        if (name, shape) not in held:
            dtype, device = self.recipe.dtype, self.recipe.device
            held[name, shape] = torch.empty(shape, dtype=dtype, device=device)
        return held[name, shape]


class _Needs(NamedTuple):
    """What the reducers of a walk look at; without log-weights, weights take their memory."""

    logs: bool
    weights: bool


class _Prepared(NamedTuple):
    """What the tiles of some heads of one example are made from."""

    batch: int
    heads: range
    keys: list[Tensor]  # (key, width + 1) for each head, ones in the last column
    masks: list[Mask | None]
    biases: list[Tensor | Bias | None]
    deep: bool  # whether some log-weight may be below what exp can take at full speed


class _DotTiles(_Tiles):
    """Tiles of a dot-product recipe: one product gives log-weights."""

    recipe: Dot

    def __init__(self, recipe: Dot, tile: tuple[int, int]) -> None:
        super().__init__(recipe.with_lse(), tile)
        self.alive = None if recipe.mask is None else recipe.mask.alive(*recipe.shape[2:])
        self.bands: dict[tuple[int, int, int], _Permit] = {}

    def prepare(self, batch: int, heads: range) -> _Prepared:
        recipe = self.recipe
        share = recipe.query.shape[1] // recipe.key.shape[1]
        first, last = heads[0] // share, heads[-1] // share
        key = recipe.key[batch : batch + 1, first : last + 1].to(recipe.dtype)
        if self.alive is not None:  # NaN in padding must not reach a product
            one = slice(batch, batch + 1) if self.alive.shape[0] > 1 else slice(None)
            key = clean(key, self.alive[one].any(1, keepdim=True))
        keys = F.pad(key[0], (0, 1), value=1.0)  # (group, key, width + 1)
        return _Prepared(
            batch,
            heads,
            [keys[head // share - first] for head in heads],
            [None if recipe.mask is None else recipe.mask.at(batch, head) for head in heads],
            [bias_at(recipe.bias, batch, head) for head in heads],
            self._deep(batch, heads, key[0]),
        )

    def _deep(self, batch: int, heads: range, keys: Tensor) -> bool:
        """Cauchy and Schwarz bound every score by the norms, so most walks need no clamping."""
        recipe, which = self.recipe, slice(heads[0], heads[-1] + 1)
        assert recipe.lse is not None
        norms = (
            recipe.query[batch, which].to(recipe.dtype).norm(dim=-1).max() * keys.norm(dim=-1).max()
        )
        lowest = -abs(recipe.scale) * norms - recipe.lse[batch, which].max()
        return recipe.softcap is not None or not float(lowest) > -80.0

    def queries(self, prepared: _Prepared, rows: slice) -> Tensor:
        """Scaled queries with −log-sum-exp in one more column, (head, row, width + 1)."""
        recipe, which = self.recipe, slice(prepared.heads[0], prepared.heads[-1] + 1)
        assert recipe.lse is not None
        query, lse = (
            recipe.query[prepared.batch, which, rows],
            recipe.lse[prepared.batch, which, rows],
        )
        out = self.buffer("queries", *query.shape[:2], query.shape[2] + 1)
        out[..., :-1].copy_(query).mul_(recipe.scale)
        out[..., -1].copy_(lse).neg_()
        return out

    def tile(
        self,
        prepared: _Prepared,
        queries: Tensor,
        place: int,
        rows: slice,
        columns: slice,
        needs: _Needs,
    ) -> tuple[Tensor | None, Tensor | None] | None:
        recipe = self.recipe
        block = Block(rows, columns, *recipe.shape[2:])
        permit = self._permit(prepared.masks[place], block)
        if permit is False:
            return None
        logs = self.buffer("logs", block.height, block.breadth)
        if recipe.softcap is None:
            torch.mm(queries[place], prepared.keys[place][columns].T, out=logs)
        else:
            torch.mm(queries[place, :, :-1], prepared.keys[place][columns, :-1].T, out=logs)
            logs.div_(recipe.softcap).tanh_().mul_(recipe.softcap).add_(queries[place, :, -1:])
        added = bias_block(prepared.biases[place], block)
        if added is not None:
            logs.add_(added[0, 0].to(recipe.dtype)).clamp_min_(NEVER)
        if permit is not None:
            logs.add_(permit.logs)
        if not needs.weights:
            return logs, None
        gone = None if added is None else logs <= NEVER / 2
        out = self.buffer("weights", block.height, block.breadth) if needs.logs else logs
        deep = prepared.deep or permit is not None or added is not None
        weights = exp(logs, out=out) if deep else torch.exp(logs, out=out)
        if permit is not None:
            weights.mul_(permit.weights)
        if gone is not None:
            weights.masked_fill_(gone, 0.0)
        return (logs if needs.logs else None), weights

    def _permit(self, mask: Mask | None, block: Block) -> _Permit | Literal[False] | None:
        """How to forbid pairs of a block: None where all may attend, False where none may."""
        place = (block.columns.start - block.rows.start, block.height, block.breadth)
        if mask is None or (isinstance(mask, Band) and place in self.bands):
            return None if mask is None else self.bands[place]
        allowed = mask.block(block, self.recipe.device)
        if isinstance(allowed, bool):
            return None if allowed else False
        keep = allowed[0, 0].to(self.recipe.dtype)
        if not isinstance(mask, Band):
            total = float(keep.sum())
            if total in (0, keep.numel()):
                return None if total else False
        permit = _Permit((1.0 - keep).mul_(NEVER), keep)
        if isinstance(mask, Band):  # a band looks the same all along the diagonal
            self.bands[place] = permit
        return permit


class _Permit(NamedTuple):
    """A block of a mask as numbers: to add to log-weights, to multiply weights with."""

    logs: Tensor
    weights: Tensor


def _matrices(shape: Shape, together: bool) -> Iterator[tuple[int, range]]:
    for batch in range(shape.batch):
        if together:
            yield batch, range(shape.heads)
        else:
            for head in range(shape.heads):
                yield batch, range(head, head + 1)


def _matrix(recipe: Recipe, batch: int, heads: Sequence[int]) -> Matrix:
    _, n_heads, queries, keys = recipe.shape
    first = heads[0] if len(heads) else 0
    return Matrix(batch, first, n_heads, queries, keys, recipe.dtype, recipe.device)


def _stack(results: list[Any], shape: Shape, across_heads: bool) -> Any:
    """(batch · head) answers to one answer with leading axes batch and head, or batch alone."""
    if not results:
        raise RegardError(f"reduce: nothing to reduce in an attention of shape {tuple(shape)}")
    if isinstance(results[0], tuple):
        columns = [_stack(list(column), shape, across_heads) for column in zip(*results)]
        kind = type(results[0])
        return kind(*columns) if hasattr(kind, "_fields") else tuple(columns)
    tensors = [torch.as_tensor(result) for result in results]
    stacked = tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)
    return stacked if across_heads else stacked.unflatten(0, (shape.batch, shape.heads))


def _without_grad(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """Grad mode is per thread: carry no_grad into a worker."""

    def quietly(argument: Any) -> None:
        with torch.no_grad():
            work(argument)

    return quietly


_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    """Torch's own threads set to one; the last to leave restores what the first one found."""
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = torch.get_num_threads()
            torch.set_num_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                torch.set_num_threads(_before)
