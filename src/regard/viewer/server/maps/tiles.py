"""Maps of a scene, computed piece by piece from the recipes on demand.

A *band* is 256 rows of a map over all its columns: at level 0 as they are, at level l the largest
of each 2^l × 2^l cells. Tiles and rows are cut from bands, so that a weight is the same number
wherever it is seen, and the same as in `record.weights()`.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate import relevance, rollout
from regard.errors import UnavailableError
from regard.recipe import Dot, Recipe, Softmaxed
from regard.record import Trace
from regard.viewer.scene import Scene, Site
from regard.viewer.server.limits import Refusal
from regard.viewer.server.maps.axes import Axis, runs
from regard.viewer.server.maps.map_query import MapQuery
from regard.viewer.stack import follows

SIDE = 256  #: cells of a tile
Cells = Float[Tensor, "row column"]
_Key = tuple[object, ...]
_Part = Callable[[slice, slice | None], Cells]  #: weights of some rows and columns


class TileCache:
    """A least-recently-used cache of tensors, limited in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes = limit, 0
        self._tensors: OrderedDict[_Key, Tensor] = OrderedDict()
        self._locks: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def get(self, key: _Key, make: Callable[[], Tensor]) -> Tensor:
        """The cached tensor, or that of `make`, called once for concurrent requests."""
        with self._lock:
            if key in self._tensors:
                self._tensors.move_to_end(key)
                return self._tensors[key]
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            with self._lock:
                if key in self._tensors:
                    return self._tensors[key]
            try:
                tensor = make()
                self._keep(key, tensor)
            finally:
                with self._lock:
                    if self._locks.get(key) is lock:  # after a failure it may be another thread's
                        del self._locks[key]
        return tensor

    def _keep(self, key: _Key, tensor: Tensor) -> None:
        with self._lock:
            if key in self._tensors:  # computed twice, after one thread failed
                self._bytes -= self._tensors.pop(key).nbytes
            self._tensors[key] = tensor
            self._bytes += tensor.nbytes
            while self._bytes > self._limit and len(self._tensors) > 1:
                self._bytes -= self._tensors.popitem(last=False)[1].nbytes

    def forget(self, first: object) -> None:
        """Drop every tensor whose key starts with this."""
        with self._lock:
            for key in [key for key in self._tensors if key[0] == first]:
                self._bytes -= self._tensors.pop(key).nbytes


class Maps:
    """The maps of one scene."""

    def __init__(self, name: str, scene: Scene, cache: TileCache) -> None:
        self._name, self.scene, self._cache = name, scene, cache
        self._recipes: dict[tuple[int, bool], Recipe] = {}
        self._axes: dict[tuple[int, str, str], Axis] = {}
        self._lock = threading.Lock()

    def axes(self, query: MapQuery) -> tuple[Axis, Axis]:
        """Rows and columns of a map."""
        site = query.sites(self.scene)[0]
        return self._axis(site.queries, query), self._axis(site.keys, query)

    def _axis(self, line: int, query: MapQuery) -> Axis:
        key = (line, query.unit, query.special)
        if key not in self._axes:
            self._axes[key] = Axis.of(self.scene.lines[line], query.unit, query.special)
        return self._axes[key]

    def levels(self, query: MapQuery) -> int:
        """How many resolutions there are: the last one is a single tile."""
        longest = max(axis.size for axis in self.axes(query))
        return 1 + max(0, -(-longest // SIDE) - 1).bit_length()

    def alike(self, query: MapQuery, *key: object) -> _Key:
        """A key of what a piece is cut from: a band, or a whole map through all layers."""
        if query.through:
            return self._name, query.mode, query.part
        return self._name, query, *key

    def tile(self, query: MapQuery, level: int, row: int, column: int) -> Cells:
        """A square of cells, cut off at the edges of the map."""
        return self._band(query, level, row)[:, column * SIDE : (column + 1) * SIDE]

    def row(self, query: MapQuery, index: int) -> Float[Tensor, " column"]:
        """One row."""
        return self._band(query, 0, index // SIDE)[index % SIDE]

    def column(self, query: MapQuery, index: int) -> Float[Tensor, " row"]:
        """One column; each weight from the normaliser of its row, where the recipe has one."""
        rows, columns = self.axes(query)
        here, every = slice(index, index + 1), slice(0, rows.size)
        with torch.inference_mode():
            if self._renormalised(query):  # by whole rows
                bands = [self._band(query, 0, row) for row in range(-(-rows.size // SIDE))]
                return torch.cat([band[:, index] for band in bands])
            positions = columns.positions(here)
            merged = []
            for part in self._parts(query):
                blocks = [part(slice(None), where) for where in runs(positions)]
                cells = columns.summed(torch.cat(blocks, 1), here, runs(positions), 1)
                merged.append(rows.mean(cells, every, [slice(0, len(cells))])[:, 0])
            return functools.reduce(torch.maximum, merged).contiguous()

    def features(self, query: MapQuery, row: int, key: int) -> Float[Tensor, " feature"]:
        """What each feature adds to the score of a query and a key, positions both."""
        site = query.sites(self.scene)[0]
        recipe = site.record.recipe.plain().detach()
        is_head = query.mode == "head" and query.layer is not None
        if not is_head or not isinstance(recipe, Dot) or not recipe.is_plain_product:
            message = "the scores of this map are no products of queries and keys"
            raise Refusal(422, "no_features", message)
        query_, key_ = (part[self.scene.example] for part in (recipe.query, recipe.key))
        group = query.head // (query_.shape[0] // key_.shape[0])
        products = query_[query.head, row].float() * key_[group, key].float() * recipe.scale
        return products.cpu()

    def _band(self, query: MapQuery, level: int, row: int) -> Cells:
        """Rows `row` · 256 … of a level, over all columns."""

        def make() -> Tensor:
            with torch.inference_mode():
                return self._pooled(query, level, row) if level else self._finest(query, row)

        return self._cache.get((self._name, "band", query, level, row), make)

    def _pooled(self, query: MapQuery, level: int, row: int) -> Cells:
        """A band from the two below it; those are kept, unless they are of the finest level."""
        below = self._finest if level == 1 else lambda query, row: self._band(query, level - 1, row)
        size = self.axes(query)[0].size
        there = [child for child in (2 * row, 2 * row + 1) if child * SIDE << (level - 1) < size]
        bands = torch.cat([below(query, child) for child in there])[None]
        largest = F.max_pool2d(bands, 2, ceil_mode=True)[0]
        if query.sites(self.scene)[0].record.kind != "signed":
            return largest
        smallest = -F.max_pool2d(-bands, 2, ceil_mode=True)[0]
        return torch.where(largest >= -smallest, largest, smallest)  # the one farthest from 0

    def _finest(self, query: MapQuery, row: int) -> Cells:
        """A band of weights as they are."""
        parts = (self._reduced(query, row, part) for part in self._parts(query))
        return functools.reduce(torch.maximum, parts).contiguous()

    def _reduced(self, query: MapQuery, row: int, part: _Part) -> Cells:
        """A band of one part: words merged, rows divided."""
        rows, columns = self.axes(query)
        where = slice(row * SIDE, min((row + 1) * SIDE, rows.size))
        ranges = runs(rows.positions(where))
        cells = torch.cat([part(span, None) for span in ranges])
        every = [slice(0, cells.shape[1])]
        cells = rows.mean(columns.summed(cells, slice(0, columns.size), every, 1), where, ranges)
        if self._renormalised(query):
            total = cells.sum(1, keepdim=True)
            cells = cells / torch.where(total > 0, total, 1.0)
        return cells

    def _renormalised(self, query: MapQuery) -> bool:
        """Whether rows are shares of what is left of them: special tokens are hidden."""
        site = query.sites(self.scene)[0]
        lines = (self.scene.lines[line] for line in (site.queries, site.keys))
        shares = site.record.kind in ("distribution", "partial")
        return query.special == "hidden" and shares and any(any(line.special) for line in lines)

    def _parts(self, query: MapQuery) -> list[_Part]:
        """Maps whose largest is asked for: a sum of largest weights is no weight."""
        if query.mode != "max":
            return [functools.partial(self._cells, query)]
        return [
            functools.partial(self._weights, site, head)
            for site in query.sites(self.scene)
            for head in range(site.record.shape.heads)
        ]

    def _cells(self, query: MapQuery, rows: slice, columns: slice | None) -> Cells:
        """Weights between positions: of one head, or the mean of all heads and layers asked for."""
        sites = query.sites(self.scene)
        if query.mode == "head":
            return self._weights(sites[0], query.head, rows, columns)
        if query.through:
            return self._whole(query)[rows, columns or slice(None)]
        total: Tensor | None = None
        for site in sites:
            for head in range(site.record.shape.heads):
                weights = self._weights(site, head, rows, columns)
                total = weights.clone() if total is None else total.add_(weights)
        assert total is not None
        return total / sum(site.record.shape.heads for site in sites)

    def _weights(self, site: Site, head: int, rows: slice, columns: slice | None) -> Cells:
        recipe = self._recipe(site, with_lse=columns is not None)
        matrix = recipe.at(self.scene.example, head)
        return matrix.weights(rows, columns)[0, 0].float().cpu()

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

    def _whole(self, query: MapQuery) -> Cells:
        """A map through all layers, computed and cached whole."""

        def make() -> Tensor:
            part = self.scene.parts[query.part]
            if not follows(self.scene, part):
                message = f"the layers of {part.label} cannot be multiplied, or are too long for it"
                raise Refusal(422, "no_such_map", f"{query.mode}: {message}")
            trace = Trace([site.record for site in query.sites(self.scene)])
            try:
                through = rollout(trace) if query.mode == "rollout" else relevance(trace)
            except UnavailableError as error:
                raise Refusal(422, "no_such_map", str(error)) from error
            return through[self.scene.example].float().cpu()

        return self._cache.get((self._name, query.mode, query.part), make)
