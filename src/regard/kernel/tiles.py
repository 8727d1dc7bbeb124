"""Walks a recipe block by block and feeds the tiles to reducers.

Three tiers answer a question: a reducer's `shortcut`, which needs only a few entries or an
identity; wide tiles, for reducers that want whole rows; and tiles small enough for a core's
cache. Blocks where nothing may attend are skipped.

Thousands of small parallel products lose badly when two threads share each one, so torch's own
threads are set to one for the duration, and Python threads take whole matrices or rows instead.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from regard.errors import RegardError
from regard.kernel.reduce import Matrix, Reducer
from regard.kernel.tile_makers import Needs, TileMaker, tile_maker
from regard.recipe import Recipe, exp
from regard.types import NEVER, Shape, pieces, whole

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
    for index, reducer in enumerate(reducers):
        if reducer.differentiable:
            answers[index] = _dense(recipe, reducer)
    with torch.no_grad():
        detached = recipe.detach()
        narrow: list[int] = []
        wide: list[int] = []
        for index, reducer in enumerate(reducers):
            if index in answers:
                continue
            answers[index] = reducer.shortcut(detached)
            if answers[index] is None:
                (wide if reducer.whole_rows else narrow).append(index)
        for some, size in ((narrow, tile), (wide, (tile[0], max(1, recipe.shape.keys)))):
            if some:
                found = _walk(detached, [reducers[index] for index in some], size)
                answers.update(zip(some, found))
    return tuple(answers[index] for index in range(len(reducers)))


def _dense(recipe: Recipe, reducer: Reducer) -> Any:
    """One big tile for each matrix, inside the autograd graph."""
    block = whole(recipe.shape.queries, recipe.shape.keys)
    logs = recipe.log_weights(block)
    weights = exp(logs).masked_fill(logs <= NEVER / 2, 0.0)
    results = []
    for batch, heads in _matrices(recipe.shape, reducer.across_heads):
        state = reducer.started(_matrix(recipe, batch, heads))
        for head in heads:
            state.tile(block.rows, block.columns, logs[batch, head], weights[batch, head])
        results.append(state.result())
    return _stack(results, recipe.shape, reducer.across_heads)


def _walk(recipe: Recipe, reducers: list[Reducer], size: tuple[int, int]) -> list[Any]:
    shape = recipe.shape
    together = any(reducer.across_heads for reducer in reducers)
    groups = list(_matrices(shape, together))
    maker = tile_maker(recipe, size)
    threads = torch.get_num_threads() if math.prod(shape) >= _WORTH_THREADS else 1
    finished: dict[tuple[int, range], list[list[Reducer]]] = {}

    def run_group(group: tuple[int, range]) -> None:
        finished[group] = _Group(maker, reducers, *group).run(1, None)

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
                        finished[group] = _Group(maker, reducers, *group).run(threads, pool)

    found = []
    for index, reducer in enumerate(reducers):
        results = [state.result() for group in groups for state in finished[group][index]]
        found.append(_stack(results, shape, reducer.across_heads))
    return found


class _Group:
    """The heads of one example that are walked together: all of them, or one."""

    def __init__(self, maker: TileMaker, reducers: list[Reducer], batch: int, heads: range) -> None:
        self.maker, self.batch, self.heads = maker, batch, heads
        self.states = [
            [reducer.started(_matrix(maker.recipe, batch, heads))]
            if reducer.across_heads
            else [reducer.started(_matrix(maker.recipe, batch, [head])) for head in heads]
            for reducer in reducers
        ]
        self.needs = Needs(
            logs=any(reducer.needs_log_weights for reducer in reducers),
            weights=any(reducer.needs_weights for reducer in reducers),
        )
        # Who may spoil the tile sees it last.
        spoils = [type(reducer).last_tile is not Reducer.last_tile for reducer in reducers]
        self.order = sorted(range(len(reducers)), key=spoils.__getitem__)

    def run(self, threads: int, pool: ThreadPoolExecutor | None) -> list[list[Reducer]]:
        prepared = self.maker.prepare(self.batch, self.heads)
        jobs = iter(list(pieces(self.maker.recipe.shape.queries, self.maker.rows)))
        if threads == 1 or pool is None:
            self._rows(prepared, jobs, self.states)
            return self.states
        forks = [[[s.fork() for s in states] for states in self.states] for _ in range(threads - 1)]
        work = _without_grad(lambda states: self._rows(prepared, jobs, states))
        list(pool.map(work, [self.states, *forks]))
        for fork in forks:
            for states, others in zip(self.states, fork):
                for state, other in zip(states, others):
                    state.merge(other)
        return self.states

    def _rows(self, prepared: Any, jobs: Iterator[slice], states: list[list[Reducer]]) -> None:
        """Walk the row blocks that `jobs` hands out; several threads may share `jobs`."""
        maker, needs = self.maker, self.needs
        viewers = []  # for each head of the group, the reducers that see its tiles
        for place in range(len(self.heads)):
            *early, last = [states[i][place if len(states[i]) > 1 else 0] for i in self.order]
            viewers.append(([reducer.tile for reducer in early], last.last_tile))
        for rows in jobs:
            queries = maker.queries(prepared, rows)
            for columns in maker.columns(rows):
                for place, (views, last_view) in enumerate(viewers):
                    tile = maker.tile(prepared, queries, place, rows, columns, needs)
                    if tile is not None:
                        for view in views:
                            view(rows, columns, *tile)
                        last_view(rows, columns, *tile)


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
