"""The recipe of attention over a list of (query, key) pairs: graphs, gathered keys, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import DtypeError, ShapeError, UnavailableError
from regard.recipe.base import Recipe, heads_of, per_head, span
from regard.types import (
    Kind,
    Mixed,
    Shape,
    Values,
    Weights,
    brief,
    pieces,
    register_pytree,
)

_GATHERED = 1 << 22  # values gathered at once by `mixed`

Index = Int[Tensor, "index_batch index_head edge"]
KeyIndex = Int[Tensor, "key_batch key_head edge"]
EdgeWeights = Float[Tensor, "batch head edge"]


class Offsets(NamedTuple):
    """Weights by where a key lies as seen from its query: `dy` rows below, `dx` columns right.

    `weights[..., i, j]` is of the key at offset (`dy[i]`, `dx[j]`), 0 where that is outside the
    image or has no edge. Offsets go from −reach to reach, so that (0, 0) is in the middle.
    """

    weights: Float[Tensor, "batch head row column dy dx"]
    dy: Int[Tensor, " dy"]
    dx: Int[Tensor, " dx"]


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Recipe):
    """Weights of a sparse list of pairs: edge e joins query `query_index[e]` and `key_index[e]`.

    Indices are (batch or 1, head or 1, edge), size 1 where all examples or heads share the pairs.
    Pairs without an edge have weight 0, and so have queries without any. The weights of an edge
    listed twice add up. An absent edge (padding of gathered neighbours) is one of weight 0.
    `grid`: rows and columns of the image whose positions, row by row, are the keys.

    `Edges.between` checks what it is given. The constructor does not: it stays free of reads from
    the device.
    """

    query_index: Index
    key_index: KeyIndex
    edge_weights: EdgeWeights
    queries: int
    keys: int
    value: Values | None = None
    of: Kind = "distribution"
    #: where each row begins in edges sorted by query, and where the last ends; set by `plain`
    row_starts: Int[Tensor, "row_batch row_head row_end"] | None = None
    grid: tuple[int, int] | None = None

    @classmethod
    def between(
        cls,
        query_index: Int[Tensor, "*index_lead edge"],
        key_index: Int[Tensor, "*key_lead edge"],
        weights: Float[Tensor, "*lead edge"],
        *,
        queries: int,
        keys: int,
        value: Values | None = None,
        of: Kind = "distribution",
    ) -> Edges:
        """The recipe of these edges, checked.

        In PyTorch Geometric's `edge_index`, row 0 holds the keys (sources) and row 1 the queries
        (targets), and weights come as (edge, head): transpose them.

        Args:
            query_index: the query of each edge, (edge,) or (batch or 1, head or 1, edge).
            key_index: the key of each edge, in the same form.
            weights: (edge,), (head, edge) or (batch, head, edge).
            queries: how many there are.
            keys: how many there are.
            value: (batch, head or group, key, width).
            of: what the weights of a query sum to.
        """
        edges = cls(
            _with_leading_axes(query_index, "query_index"),
            _with_leading_axes(key_index, "key_index"),
            _with_leading_axes(weights, "weights"),
            queries,
            keys,
            value,
            of,
        )
        edges.check()
        return edges

    def check(self) -> None:
        """Raise where axes do not fit or an index is out of range. Reads the indices."""
        if not self.edge_weights.is_floating_point():
            raise DtypeError(f"Edges: weights are {self.edge_weights.dtype}, expected floats")
        sizes = tuple(self.edge_weights.shape)
        for name, index, length in (
            ("query_index", self.query_index, self.queries),
            ("key_index", self.key_index, self.keys),
        ):
            if index.dtype != torch.long:
                raise DtypeError(f"Edges: {name} is {index.dtype}, expected torch.int64")
            allowed = index.dim() == len(sizes) == 3 and index.shape[2] == sizes[2]
            if not allowed or any(i not in (1, s) for i, s in zip(index.shape[:2], sizes)):
                raise ShapeError(
                    f"Edges: {name} is {tuple(index.shape)} and weights are {sizes}, expected "
                    "(batch or 1, head or 1, edge) and (batch, head, edge)"
                )
            if index.numel():
                low, high = (int(end) for end in index.aminmax())
                if low < 0 or high >= length:
                    raise ShapeError(
                        f"Edges: {name} holds {low if low < 0 else high}, expected 0 to "
                        f"{length - 1}: there are {length} {name.removesuffix('_index')} positions"
                    )
        if self.value is not None:
            value = tuple(self.value.shape)
            fits = len(value) == 4 and (value[0], value[2]) == (sizes[0], self.keys)
            if not fits or not value[1] or sizes[1] % value[1]:
                raise ShapeError(
                    f"Edges: value is {value}, expected ({sizes[0]}, {sizes[1]} or a divisor, "
                    f"{self.keys}, width)"
                )

    def __repr__(self) -> str:
        return f"{brief(self)[:-1]}, {self.n_edges} edges)"

    @property
    def n_edges(self) -> int:
        """Edges of one matrix, absent ones included."""
        return self.edge_weights.shape[2]

    @property
    def shape(self) -> Shape:
        batch, heads, _ = self.edge_weights.shape
        return Shape(batch, heads, self.queries, self.keys)

    @property
    def kind(self) -> Kind:
        return self.of

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.edge_weights.dtype, torch.float32)

    @property
    def device(self) -> torch.device:
        return self.edge_weights.device

    def plain(self) -> Edges:
        """The same edges sorted by query, so that a block of rows is a slice of them."""
        if self.row_starts is not None:
            return self
        rows, order = self.query_index.sort(dim=-1, stable=True)
        ends = torch.arange(self.queries + 1, device=self.device)
        ends = ends.expand(*rows.shape[:2], -1).contiguous()
        return replace(
            self,
            query_index=rows,
            key_index=torch.take_along_dim(self.key_index, order, -1),
            edge_weights=torch.take_along_dim(self.edge_weights, order, -1),
            row_starts=torch.searchsorted(rows, ends),
        )

    def weights(self, rows: slice | None = None, columns: slice | None = None) -> Weights:
        rows, columns = span(rows, self.queries), span(columns, self.keys, "columns")
        height, breadth = rows.stop - rows.start, columns.stop - columns.start
        edges = self._edges(rows)
        row, column = self.query_index[..., edges], self.key_index[..., edges]
        weights = self.edge_weights[..., edges].to(self.dtype)
        inside = (row >= rows.start) & (row < rows.stop)
        inside = inside & (column >= columns.start) & (column < columns.stop)
        cell = (row - rows.start) * breadth + column - columns.start
        batch, heads, _ = weights.shape
        if not height * breadth:
            return weights.new_zeros(batch, heads, height, breadth)
        cell = cell.masked_fill(~inside, 0).expand(weights.shape)
        flat = weights.new_zeros(batch, heads, height * breadth)
        flat.scatter_add_(2, cell, weights.masked_fill(~inside, 0.0))
        return flat.view(batch, heads, height, breadth)

    def offsets(
        self, *, grid: tuple[int, int] | None = None, reach: tuple[int, int] | None = None
    ) -> Offsets:
        """The weights over (dy, dx): where each query of an image looks, as seen from itself.

        Queries and keys are the positions of one image, row by row.

        Args:
            grid: rows and columns of the image, where the recipe does not say.
            reach: the largest |dy| and |dx|; the smallest that hold every weight but 0 when None.
        """
        rows, columns = grid = self._grid(grid)
        batch, heads, n_edges = self.edge_weights.shape
        weights = self.edge_weights.to(self.dtype)
        dy = self.key_index // columns - self.query_index // columns
        dx = self.key_index % columns - self.query_index % columns
        if reach is None:
            some = weights != 0
            reach = (_largest(dy, some), _largest(dx, some))
        height, width = 2 * reach[0] + 1, 2 * reach[1] + 1
        inside = (dy.abs() <= reach[0]) & (dx.abs() <= reach[1])
        cell = self.query_index * height + dy + reach[0]
        cell = (cell * width + dx + reach[1]).masked_fill(~inside, 0).expand(weights.shape)
        flat = weights.new_zeros(batch, heads, rows * columns * height * width)
        if n_edges and flat.numel():
            flat.scatter_add_(2, cell, weights.masked_fill(~inside, 0.0))
        return Offsets(
            flat.view(batch, heads, rows, columns, height, width),
            torch.arange(-reach[0], reach[0] + 1, device=self.device),
            torch.arange(-reach[1], reach[1] + 1, device=self.device),
        )

    def _grid(self, grid: tuple[int, int] | None) -> tuple[int, int]:
        grid = self.grid if grid is None else grid
        if grid is None:
            raise UnavailableError(
                "offsets: this recipe does not say how its keys lie in an image: pass "
                f"grid=(rows, columns), rows · columns = {self.keys}"
            )
        positions = grid[0] * grid[1]
        if positions != self.keys or positions != self.queries:
            raise ShapeError(
                f"offsets: grid={tuple(grid)} has {positions} positions, but there are "
                f"{self.queries} queries and {self.keys} keys: both must be the positions of it"
            )
        return grid

    def mixed(self) -> Mixed:
        """Weights times values, summed edge by edge: the matrix is never made."""
        batch, heads, _, _ = self.shape
        value = self._values()
        values = per_head(value, heads)
        width = values.shape[3]
        output = self.edge_weights.new_zeros(batch, heads, self.queries, width, dtype=self.dtype)
        step = max(1, _GATHERED // max(1, batch * heads * width))
        for edges in pieces(self.n_edges, step):
            weights = self.edge_weights[..., edges].to(self.dtype)[..., None]
            key = self.key_index[..., edges, None].expand(*weights.shape[:3], width)
            query = self.query_index[..., edges, None].expand(*weights.shape[:3], width)
            output.scatter_add_(2, query, weights * values.gather(2, key).to(self.dtype))
        return output.to(value.dtype)

    def of_heads(self, which: Sequence[int]) -> Edges:
        heads = self.shape.heads
        return self.map(lambda tensor: heads_of(tensor, which, heads))

    def at(self, batch: int, head: int) -> Edges:
        def matrix(tensor: Tensor) -> Tensor:  # examples may share it, and heads, in groups
            example = min(batch, tensor.shape[0] - 1)
            group = head // (self.shape.heads // tensor.shape[1])
            return tensor[example : example + 1, group : group + 1]

        return self.map(matrix)

    def _edges(self, rows: slice) -> slice:
        """The edges among which those of some rows are: a part where they are sorted."""
        if self.row_starts is None or not self.row_starts.numel():
            return slice(None)
        starts, stops = self.row_starts[..., rows.start], self.row_starts[..., rows.stop]
        return slice(int(starts.min()), int(stops.max()))


def _largest(offset: Tensor, some: Tensor) -> int:
    """The largest distance of some edges; 0 where there are none."""
    distances = torch.where(some, offset.abs(), 0)
    return int(distances.max()) if distances.numel() else 0


def _with_leading_axes(tensor: Tensor, name: str) -> Tensor:
    """(edge,), (head, edge) or (batch, head, edge) with all three axes."""
    if not 1 <= tensor.dim() <= 3:
        raise ShapeError(
            f"Edges: {name} has {tensor.dim()} axes {tuple(tensor.shape)}, expected (edge,), "
            "(head, edge) or (batch, head, edge)"
        )
    return tensor[(None,) * (3 - tensor.dim())]


register_pytree(Edges, static=("queries", "keys", "of", "grid"))
