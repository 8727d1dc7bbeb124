"""`reduce`: questions about the weights of a recipe, answered without the full matrix.

Three tiers answer a question: a reducer's `shortcut`, which needs only a few entries or an
identity; wide tiles, for reducers that want whole rows; and tiles small enough for a core's cache.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from regard.errors import RegardError, UnavailableError
from regard.kernel.reducers.base import Reducer
from regard.kernel.tile_walk import dense, n_threads, small, stacks, walk
from regard.recipe import Recipe
from regard.softmax import autocasting

ROWS, COLUMNS = 256, 512  # a tile of float32 stays in a core's cache
_WHY = {
    "signed": "as they may be negative (delta rules, mixtures of heads, capture(rules=...))",
    "gate": "as they are no shares of a sum (sigmoids)",
}
_SMALL = 1 << 19  # weights up to which one tile a matrix is faster than a walk
_SMALL_MATRIX = 1 << 15  # weights of a matrix up to which stacked matrices are faster than a walk,
_STACK = 1 << 18  # so many weights at a time: they stay in a core's cache


def reduce(
    recipe: Recipe, reducers: Sequence[Reducer], *, tile: tuple[int, int] | None = None
) -> tuple[Any, ...]:
    """The reducers' answers about a recipe, in the order asked.

    Answers are stacked over (batch, head), or over batch for a reducer across heads.

    Args:
        recipe: what an attention kept, as `Attended.recipe`.
        reducers: what is asked.
        tile: rows and columns of a tile; chosen by size when None.
    """
    if not isinstance(reducers, list | tuple):
        raise RegardError(f"reduce: {reducers!r}, expected a list of reducers, as [Entropy()]")
    for reducer in reducers:
        if not isinstance(reducer, Reducer):
            raise RegardError(f"reduce: {reducer!r} is not a Reducer; pass instances, as Entropy()")
    if "torch._dynamo" not in sys.modules:
        return _answers(recipe, reducers, tile)
    if not _outside_graphs:
        _outside_graphs.append(torch._dynamo.disable(_answers))
    return _outside_graphs[0](recipe, reducers, tile)


#: `_answers`, kept outside compiled graphs; made when there is a compiler, which is slow to load.
_outside_graphs: list[Callable[..., tuple[Any, ...]]] = []


def _answers(
    recipe: Recipe, reducers: Sequence[Reducer], tile: tuple[int, int] | None
) -> tuple[Any, ...]:
    answers: dict[int, Any] = {}
    reducers = [reducer.suited(recipe.kind) for reducer in reducers]
    for index, reducer in enumerate(reducers):
        if reducer.differentiable:
            _check_logarithms(recipe, [reducer])
            answers[index] = dense(recipe, [reducer])[0]
    off = torch.autocast(recipe.device.type, enabled=False) if autocasting(recipe.device) else None
    with torch.no_grad(), off or nullcontext():
        detached = recipe.detach().plain()
        waiting = []
        for index, reducer in enumerate(reducers):
            if index not in answers:
                answers[index] = reducer.shortcut(detached)
                if answers[index] is None:
                    waiting.append(index)
        _check_logarithms(recipe, [reducers[index] for index in waiting])
        for indices, run in _plan(detached, reducers, waiting, tile):
            answers.update(zip(indices, run(detached, [reducers[index] for index in indices])))
    return tuple(answers[index] for index in range(len(reducers)))


def _check_logarithms(recipe: Recipe, reducers: Sequence[Reducer]) -> None:
    """Refuse logarithms of weights that may be negative, and name who wants them."""
    names = [type(reducer).__name__ for reducer in reducers if reducer.needs_log_weights]
    if names and recipe.kind in ("signed", "gate"):
        raise UnavailableError(
            f"{', '.join(names)}: {recipe.kind} weights have no logarithm, {_WHY[recipe.kind]}; "
            "take weights(), or reducers that need no logarithm: ReceivedAttention, WeightedSum, "
            "SegmentWeights, Distance, QueryRows, HeadMean, HeadMax, HeadMin, FullWeights, "
            "or your own with needs_log_weights = False"
        )


def _plan(
    recipe: Recipe, reducers: Sequence[Reducer], waiting: list[int], tile: tuple[int, int] | None
) -> Iterator[tuple[list[int], Callable[[Recipe, list[Reducer]], list[Any]]]]:
    """Which reducers go over which tiles."""
    if tile is None and math.prod(recipe.shape) <= _SMALL:
        if waiting:
            yield waiting, small
        return
    if tile is None and math.prod(recipe.shape[2:]) <= _SMALL_MATRIX:
        stacked = [i for i in waiting if reducers[i].stackable and not reducers[i].across_heads]
        waiting = [index for index in waiting if index not in stacked]
        if stacked:
            yield stacked, functools.partial(stacks, size=_STACK)
    # Threads hand the interpreter to each other at every operation: fewer, larger ones then win.
    alone = n_threads(recipe.shape) == 1
    rows, columns = (ROWS if alone else 2 * ROWS, COLUMNS) if tile is None else tile
    wide = [index for index in waiting if reducers[index].whole_rows]
    narrow = [index for index in waiting if not reducers[index].whole_rows]
    for indices, breadth in ((narrow, columns), (wide, max(1, recipe.shape.keys))):
        if indices:
            yield indices, functools.partial(walk, size=(rows, breadth))
