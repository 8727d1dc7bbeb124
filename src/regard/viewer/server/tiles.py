"""Maps of a scene, a piece at a time, made from the recipes when they are asked for.

A *band* is 256 rows of a map over all its columns: at level 0 as they are, at level l the largest
of each 2^l × 2^l cells. Tiles and rows are cut from bands, so that a weight is the same number
wherever it is seen, and the same as in `record.weights()`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate import relevance, rollout
from regard.errors import UnavailableError
from regard.recipe import Recipe, Softmaxed
from regard.record import Trace
from regard.viewer.scene import Scene, Site
from regard.viewer.server.asked import Asked
from regard.viewer.server.axes import Axis, runs
from regard.viewer.server.limits import Refused
from regard.viewer.stack import follows

SIDE = 256  #: cells of a tile
Cells = Float[Tensor, "row column"]
_Key = tuple[object, ...]


class Cache:
    """Tensors by name, up to a number of bytes; what was not asked for longest goes first."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._kept: OrderedDict[_Key, Tensor] = OrderedDict()
        self._making: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def get(self, key: _Key, make: Callable[[], Tensor]) -> Tensor:
        """What is kept under a name, or what `make` makes now, once for all who ask."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            try:
                made = make()
                self._keep(key, made)
            finally:
                with self._lock:
                    if self._making.get(key) is making:  # after a failure it may be another's
                        del self._making[key]
        return made

    def _keep(self, key: _Key, made: Tensor) -> None:
        with self._lock:
            if key in self._kept:  # made by two, after one of them failed
                self._bytes -= self._kept.pop(key).nbytes
            self._kept[key] = made
            self._bytes += made.nbytes
            while self._bytes > self._limit and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes

    def forget(self, first: object) -> None:
        """Let go of everything whose name begins so."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == first]:
                self._bytes -= self._kept.pop(key).nbytes


class Maps:
    """The maps of one scene."""

    def __init__(self, name: str, scene: Scene, cache: Cache) -> None:
        self._name, self.scene, self._cache = name, scene, cache
        self._recipes: dict[tuple[int, bool], Recipe] = {}
        self._axes: dict[tuple[int, str, str], Axis] = {}
        self._lock = threading.Lock()

    def axes(self, asked: Asked) -> tuple[Axis, Axis]:
        """Rows and columns of a map."""
        site = asked.sites(self.scene)[0]
        return self._axis(site.queries, asked), self._axis(site.keys, asked)

    def _axis(self, line: int, asked: Asked) -> Axis:
        key = (line, asked.unit, asked.special)
        if key not in self._axes:
            self._axes[key] = Axis.of(self.scene.lines[line], asked.unit, asked.special)
        return self._axes[key]

    def levels(self, asked: Asked) -> int:
        """How many resolutions there are: the last one is a single tile."""
        longest = max(axis.size for axis in self.axes(asked))
        return 1 + max(0, -(-longest // SIDE) - 1).bit_length()

    def alike(self, asked: Asked, *place: object) -> _Key:
        """A name for what a piece is cut from: a band, or the whole of a map through all layers."""
        if asked.through:
            return self._name, asked.mode, asked.part
        return self._name, asked, *place

    def tile(self, asked: Asked, level: int, row: int, column: int) -> Cells:
        """A square of cells, cut off at the edges of the map."""
        return self._band(asked, level, row)[:, column * SIDE : (column + 1) * SIDE]

    def row(self, asked: Asked, index: int) -> Float[Tensor, " column"]:
        """One row."""
        return self._band(asked, 0, index // SIDE)[index % SIDE]

    def column(self, asked: Asked, index: int) -> Float[Tensor, " row"]:
        """One column; each weight from the normaliser of its row, where the recipe has one."""
        rows, columns = self.axes(asked)
        here, every = slice(index, index + 1), slice(0, rows.size)
        with torch.inference_mode():
            places = columns.positions(here)
            found = [self._cells(asked, slice(None), where) for where in runs(places)]
            cells = columns.summed(torch.cat(found, 1), here, runs(places), 1)
            return rows.mean(cells, every, [slice(0, len(cells))])[:, 0].contiguous()

    def _band(self, asked: Asked, level: int, row: int) -> Cells:
        """Rows `row` · 256 … of a level, over all columns."""

        def make() -> Tensor:
            with torch.inference_mode():
                return self._pooled(asked, level, row) if level else self._finest(asked, row)

        return self._cache.get((self._name, "band", asked, level, row), make)

    def _pooled(self, asked: Asked, level: int, row: int) -> Cells:
        """A band from the two below it; those are kept, unless they are of the finest level."""
        below = self._finest if level == 1 else lambda asked, row: self._band(asked, level - 1, row)
        size = self.axes(asked)[0].size
        there = [child for child in (2 * row, 2 * row + 1) if child * SIDE << (level - 1) < size]
        bands = torch.cat([below(asked, child) for child in there])[None]
        largest = F.max_pool2d(bands, 2, ceil_mode=True)[0]
        if asked.sites(self.scene)[0].record.kind != "signed":
            return largest
        smallest = -F.max_pool2d(-bands, 2, ceil_mode=True)[0]
        return torch.where(largest >= -smallest, largest, smallest)  # the one farthest from 0

    def _finest(self, asked: Asked, row: int) -> Cells:
        """A band of weights as they are."""
        rows, columns = self.axes(asked)
        where = slice(row * SIDE, min((row + 1) * SIDE, rows.size))
        ranges = runs(rows.positions(where))
        cells = torch.cat([self._cells(asked, part) for part in ranges])
        every = [slice(0, cells.shape[1])]
        cells = columns.summed(cells, slice(0, columns.size), every, 1)
        return rows.mean(cells, where, ranges).contiguous()

    def _cells(self, asked: Asked, rows: slice, columns: slice | None = None) -> Cells:
        """Weights between positions: of one head, or of all heads and layers asked for."""
        sites = asked.sites(self.scene)
        if asked.mode == "head":
            return self._weights(sites[0], asked.head, rows, columns)
        if asked.through:
            return self._whole(asked)[rows, columns or slice(None)]
        total: Tensor | None = None
        for site in sites:
            for head in range(site.record.shape.heads):
                weights = self._weights(site, head, rows, columns)
                if total is None:
                    total = weights.clone()
                elif asked.mode == "mean":
                    total += weights
                else:
                    torch.maximum(total, weights, out=total)
        assert total is not None
        if asked.mode == "mean":
            total /= sum(site.record.shape.heads for site in sites)
        return total

    def _weights(self, site: Site, head: int, rows: slice, columns: slice | None) -> Cells:
        recipe = self._recipe(site, with_lse=columns is not None)
        one = recipe.at(self.scene.example, head)
        return one.weights(rows, columns)[0, 0].float().cpu()

    def _recipe(self, site: Site, with_lse: bool) -> Recipe:
        """The recipe of a site as it gives blocks fastest, prepared once."""
        key = (id(site), with_lse)
        with self._lock:
            if key not in self._recipes:
                recipe = site.record.recipe.plain().detach()
                if with_lse and isinstance(recipe, Softmaxed):
                    recipe = recipe.with_lse()
                self._recipes[key] = recipe
            return self._recipes[key]

    def _whole(self, asked: Asked) -> Cells:
        """A map through all layers, which is made and kept whole."""

        def make() -> Tensor:
            part = self.scene.parts[asked.part]
            if not follows(self.scene, part):
                message = f"the layers of {part.label} cannot be multiplied, or are too long for it"
                raise Refused(422, "no_such_map", f"{asked.mode}: {message}")
            trace = Trace([site.record for site in asked.sites(self.scene)])
            try:
                through = rollout(trace) if asked.mode == "rollout" else relevance(trace)
            except UnavailableError as error:
                raise Refused(422, "no_such_map", str(error)) from error
            return through[self.scene.example].float().cpu()

        return self._cache.get((self._name, asked.mode, asked.part), make)
