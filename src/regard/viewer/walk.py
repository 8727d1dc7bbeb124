"""One walk over the weights of a head, seen by everybody who wants something of them."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate.sources import Layer
from regard.aggregate.statistics.head_statistics import TileWalk, statistics_of
from regard.aggregate.statistics.report import HeadRow, head_rows
from regard.errors import RegardError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import ReceivedAttention
from regard.kernel.reducers.base import Matrix, Reducer
from regard.recipe import Recipe
from regard.record import Record
from regard.types import pieces
from regard.viewer.forms import Strip

THUMBNAIL = 64  # positions of a side of a small picture
ROWS = 256  # of a strip
_WINDOW = 4  # positions to each side that are local, as in `regard.report`


@runtime_checkable
class Viewer(Protocol):
    """Sees the weights of a head, strip by strip."""

    def take(self, rows: slice, strip: Strip) -> None:
        """Some rows, each once; keys behind the last column of a strip have 0. Threads may come
        with several strips at a time."""


class Strips(Reducer):
    """Shows whole rows to viewers, each row once, up to the last key that they may attend to."""

    needs_log_weights = False

    def __init__(self, keys: int, viewers: Sequence[Viewer]) -> None:
        super().__init__()
        self._keys = keys
        self._viewers = viewers
        self._seen: set[int] = set()

    def start(self, matrix: Matrix) -> None:
        pass  # viewers are there already

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        strip = weights.float().cpu()
        self._show(rows, F.pad(strip, (columns.start, 0)) if columns.start else strip)

    def finish(self, queries: int) -> None:
        """Rows that attend to nothing have no tiles."""
        for rows in pieces(queries, ROWS):
            if rows.start not in self._seen:
                self._show(rows, torch.zeros(rows.stop - rows.start, self._keys))

    def _show(self, rows: slice, strip: Strip) -> None:
        self._seen.add(rows.start)
        for viewer in self._viewers:
            viewer.take(rows, strip)

    def fork(self) -> Strips:
        return copy.copy(self)  # what was seen is shared

    def merge(self, other: Strips) -> None:
        pass  # viewers saw the rows of both

    def result(self) -> Tensor:
        return torch.zeros(())


class Overview:
    """The largest weight of a head, and a small picture of it: a strong weight stays, however small
    the picture."""

    def __init__(self, queries: int, keys: int) -> None:
        self._queries, self._keys = queries, keys
        self._largest = torch.zeros(min(THUMBNAIL, queries), min(THUMBNAIL, keys))
        self._lock = threading.Lock()

    def take(self, rows: slice, strip: Strip) -> None:
        height, width = self._largest.shape
        first, last = (row * height // self._queries for row in (rows.start, rows.stop - 1))
        starts = [-(-row * self._queries // height) for row in range(first + 1, last + 1)]
        blocks = strip.abs().tensor_split([start - rows.start for start in starts])
        lines = torch.stack([block.amax(0) for block in blocks])
        largest = F.adaptive_max_pool1d(F.pad(lines, (0, self._keys - strip.shape[1])), width)
        here = self._largest[first : last + 1]
        with self._lock:
            torch.maximum(here, largest, out=here)

    def peak(self, where: str) -> float:
        """The largest absolute weight; an error where there is none."""
        peak = float(self._largest.max())
        if not torch.tensor(peak).isfinite():
            raise RegardError(f"page: {where}: weights are not finite, so they cannot be shown")
        return peak

    def picture(self) -> UInt8[Tensor, "row column"]:
        """255 for the largest weight."""
        return self._largest.mul(255 / (float(self._largest.max()) or 1.0)).round().byte()


class HeadWalk:
    """Walks over the heads of a site: the figures of each, and its weights to viewers."""

    def __init__(self, record: Record, example: int, exact: bool = False) -> None:
        self._record, self._example, self._exact = record, example, exact
        self._recipe, shape = record.recipe.plain(), record.shape
        self._cross = (
            record.attends == "cross" or shape.queries > shape.keys
        )  # keys of every second row
        tokens = record.key_tokens
        self._tokens = tokens[example] if tokens and not isinstance(tokens[0], str) else tokens
        self._typed = record.kind not in ("signed", "gate")  # those are no shares of a whole
        self._real: Tensor | None = None
        if self._typed and not self._cross and shape.queries == shape.keys:
            received = reduce(self._head(0), [ReceivedAttention()])[0]
            seen = received[0, 0].cpu() > 0  # nobody sees padding
            self._real = None if bool(seen.all()) else seen

    def show(self, head: int, viewers: Sequence[Viewer]) -> HeadRow | None:
        """The figures and the type of a head; None where weights are no shares."""
        recipe = self._head(head)
        if self._exact:  # the very numbers of the record, made at once
            weights = recipe.weights()[0, 0].float().cpu()
            for rows in pieces(len(weights), ROWS):
                for viewer in viewers:
                    viewer.take(rows, weights[rows])
            return self._rows[head] if self._typed else None
        strips = Strips(recipe.shape.keys, viewers)
        size = (ROWS, max(1, recipe.shape.keys))

        def walk(recipe: Recipe, reducers: Sequence[Reducer]) -> tuple[Any, ...]:
            return reduce(recipe, [*reducers, strips], tile=size)[:-1]

        row = self._figures(recipe, walk)[0] if self._typed else None
        if not self._typed:
            walk(recipe, [])
        strips.finish(recipe.shape.queries)
        return row

    @cached_property
    def _rows(self) -> list[HeadRow]:
        """The figures of all heads: in one walk, where the record has no other example."""
        heads = range(self._recipe.shape.heads)
        alone = self._recipe.shape.batch == 1
        recipes = [self._recipe] if alone else [self._head(head) for head in heads]
        return [row for recipe in recipes for row in self._figures(recipe)]

    def _figures(self, recipe: Recipe, walk: TileWalk | None = None) -> list[HeadRow]:
        layer = Layer(self._record.name, recipe)
        return head_rows(
            statistics_of(layer, _WINDOW, self._cross, self._tokens, self._real, None, walk)
        )

    def _head(self, head: int) -> Recipe:
        return self._recipe.at(self._example, head)


def judged(rows: Sequence[HeadRow | None]) -> dict[str, list[Any] | None]:
    """Types, entropies and distances of the heads of a site, for a manifest; None where there are
    none."""
    known = [row for row in rows if row is not None]
    return {
        "types": [row.label for row in known] or None,
        "entropy": _figures([row.entropy for row in known]),
        "distance": _figures([row.distance for row in known]),
    }


def _figures(values: list[float]) -> list[float] | None:
    finite = values and not any(map(math.isnan, values))
    return [round(value, 4) for value in values] if finite else None
