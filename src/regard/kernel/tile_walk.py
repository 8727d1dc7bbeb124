"""Walk a recipe block by block and feed the tiles to reducers.

Blocks where nothing may attend are skipped. Small attentions are one tile a matrix.

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
from torch import Tensor

from regard.kernel.reducers.base import Matrix, Reducer
from regard.kernel.tile_makers import Needs, TileMaker, tile_maker
from regard.recipe import Recipe
from regard.softmax import exp
from regard.types import NEVER, Shape, pieces, whole

_WORTH_THREADS = 1 << 21  # weights below which starting threads costs more than it gives


def dense(recipe: Recipe, reducers: list[Reducer]) -> list[Any]:
    """Whole matrices: for little work, and for answers inside the autograd graph."""
    logs, weights = _whole_matrices(recipe, reducers)
    answers = []
    for reducer in reducers:
        if reducer.stackable:
            answers.append(_of_stack(recipe, reducer, logs, weights))
            continue
        results = []
        for batch, heads in _matrices(recipe.shape, reducer.across_heads):
            state = reducer.started(_matrix(recipe, batch, heads))
            for head in heads:
                log_tile = None if logs is None else logs[batch, head]
                tile = None if weights is None else weights[batch, head]
                _show(state, log_tile, tile)
            results.append(state.result())
        answers.append(_stack(results, recipe, reducer))
    return answers


def small(recipe: Recipe, reducers: list[Reducer]) -> list[Any]:
    """The same, as fast as it goes for little work."""
    with one_torch_thread():
        return dense(recipe, reducers)


def stacks(recipe: Recipe, reducers: list[Reducer], size: int) -> list[Any]:
    """Answers of stackable reducers from whole matrices, about `size` weights at a time."""
    batch, heads, queries, keys = recipe.shape
    n_heads = max(1, size // max(1, batch * queries * keys))
    answers = []
    with one_torch_thread():
        for some in pieces(heads, n_heads):
            part = recipe.of_heads(range(some.start, some.stop))
            tiles = _whole_matrices(part, reducers)
            answers.append([_of_stack(recipe, each, *tiles, some.start) for each in reducers])
    return [_map(lambda *of_heads: torch.cat(of_heads, 1), list(parts)) for parts in zip(*answers)]


def _whole_matrices(recipe: Recipe, reducers: list[Reducer]) -> tuple[Tensor | None, Tensor | None]:
    """Log-weights and weights, (batch, head, query, key), as the reducers need them."""
    block = whole(recipe.shape.queries, recipe.shape.keys)
    logs = recipe.log_weights(block) if any(r.needs_log_weights for r in reducers) else None
    if not any(reducer.needs_weights for reducer in reducers):
        return logs, None
    if logs is None or torch.is_grad_enabled():
        return logs, recipe.weights()
    return logs, exp(logs).masked_fill_(logs <= NEVER / 2, 0.0)


def _of_stack(
    recipe: Recipe, reducer: Reducer, logs: Tensor | None, weights: Tensor | None, first: int = 0
) -> Any:
    """The answer from matrices (batch, head, query, key) of the heads from `first` on."""
    batch, heads = next(tiles.shape[:2] for tiles in (logs, weights) if tiles is not None)
    matrix = _matrix(recipe, 0, range(first, first + heads))
    if not reducer.across_heads:
        state = reducer.started(matrix._replace(stacked=(batch, heads)))
        _show(state, logs, weights)
        return state.result()
    state = reducer.started(matrix._replace(stacked=(batch,)))
    for head in range(heads):
        _show(state, *(None if tiles is None else tiles[:, head] for tiles in (logs, weights)))
    return state.result()


def _show(state: Reducer, logs: Tensor | None, weights: Tensor | None) -> None:
    rows, columns = slice(0, state.matrix.queries), slice(0, state.matrix.keys)
    state.tile(rows, columns, logs, weights)


def walk(recipe: Recipe, reducers: list[Reducer], size: tuple[int, int]) -> list[Any]:
    """Answers from tiles of some rows and columns."""
    shape = recipe.shape
    together = any(reducer.across_heads for reducer in reducers)
    groups = list(_matrices(shape, together))
    maker = tile_maker(recipe, size)
    threads = n_threads(shape)
    finished: dict[tuple[int, range], list[list[Reducer]]] = {}

    def run_group(group: tuple[int, range]) -> None:
        finished[group] = _Group(maker, reducers, *group).run(1, None)

    with one_torch_thread():
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

    answers = []
    for index, reducer in enumerate(reducers):
        results = [state.result() for group in groups for state in finished[group][index]]
        answers.append(_stack(results, recipe, reducer))
    return answers


def n_threads(shape: Shape) -> int:
    """How many threads a walk takes."""
    return torch.get_num_threads() if math.prod(shape) >= _WORTH_THREADS else 1


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
        for index in range(len(self.heads)):
            *early, last = [states[i][index if len(states[i]) > 1 else 0] for i in self.order]
            viewers.append(([reducer.tile for reducer in early], last.last_tile))
        for rows in jobs:
            queries = maker.queries(prepared, rows)
            for columns in maker.columns(rows):
                for index, (views, last_view) in enumerate(viewers):
                    tile = maker.tile(prepared, queries, index, rows, columns, needs)
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
    examples, n_heads, queries, keys = recipe.shape
    first = heads[0] if len(heads) else 0
    sizes = (batch, examples, first, n_heads, queries, keys)
    return Matrix(*sizes, recipe.dtype, recipe.device, recipe.grid)


def _stack(results: list[Any], recipe: Recipe, reducer: Reducer) -> Any:
    """(batch · head) answers to one answer with leading axes batch and head, or batch alone.

    Of no examples, or no heads, it is empty: the other axes are those of a matrix without tiles.
    """
    batch, heads = recipe.shape[:2]
    leading = (batch,) if reducer.across_heads else (batch, heads)
    if results:
        return _map(lambda *answers: _stacked(answers).unflatten(0, leading), results)
    nothing = reducer.started(_matrix(recipe, 0, range(heads))).result()
    return _map(lambda answer: answer.new_empty(*leading, *answer.shape), [nothing])


def _stacked(answers: tuple[Tensor, ...]) -> Tensor:
    return answers[0][None] if len(answers) == 1 else torch.stack(answers)


def _map(change: Callable[..., Any], results: list[Any]) -> Any:
    """`change` of tensors that several answers have in one place, which may be tuples."""
    if isinstance(results[0], tuple):
        columns = [_map(change, list(column)) for column in zip(*results)]
        kind = type(results[0])
        return kind(*columns) if hasattr(kind, "_fields") else tuple(columns)
    return change(*(torch.as_tensor(result) for result in results))


def _without_grad(work: Callable[[Any], None]) -> Callable[[Any], None]:
    """Grad and inference mode are per thread: carry them into a worker."""
    inference = torch.is_inference_mode_enabled()

    def quietly(argument: Any) -> None:
        with torch.inference_mode(inference), torch.no_grad():
            work(argument)

    return quietly


_lock = threading.Lock()
_inside = 0
_before = 1


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch's own threads set to one; each caller restores its own number on leaving.

    The number is kept by each thread for itself, so one cannot restore it for the others.
    """
    global _inside, _before
    with _lock:
        mine = torch.get_num_threads()
        if _inside == 0:
            _before = mine
        elif mine == 1:  # a thread that began to use torch meanwhile
            mine = _before
        torch.set_num_threads(1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.set_num_threads(mine)
