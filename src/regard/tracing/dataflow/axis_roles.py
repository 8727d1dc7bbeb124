"""Weights that met values: which axis is batch, head, query and key.

The axis summed over is the keys; axes of the weights alone are queries; axes shared by weights and
values are batch, heads, or queries that have keys of their own (gathered keys). The origin of an
axis tells these apart: heads are cut out of the axis along which query and key were multiplied, or
of the features of the values; an axis of the same input as the keys is the queries'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from regard.recipe import Edges
from regard.record.stored_attention import Layout
from regard.tracing.dataflow.axes import Dims, Origin, Piece
from regard.tracing.dataflow.entry_maps import View, along_dim, other_axes, positions
from regard.tracing.dataflow.tags import Box, Mark, Use, Uses, WeightedValues
from regard.types import Kind


class WeightAxis(NamedTuple):
    """An axis of the weights, or a factor of one, in the product with the values."""

    size: int
    stride: int  # in elements
    origin: Origin
    use: Use


class Roles(NamedTuple):
    """The axes that make up each of (batch, head, query, key)."""

    batch: list[WeightAxis]
    head: list[WeightAxis]
    query: list[WeightAxis]
    key: list[WeightAxis]
    certain: bool = True  # False where the assignment is a guess
    gathered: bool = False  # every query has keys of its own, chosen from all

    @property
    def axes(self) -> tuple[list[WeightAxis], ...]:
        return self.batch, self.head, self.query, self.key


@dataclass(frozen=True)
class Contraction:
    """A product of weights with values, and the use of each axis of the weights in it."""

    weights: Tensor
    dims: Dims
    uses: Uses
    values: Tensor
    value_dims: Dims
    value_view: View
    output: Tensor
    mark: Mark
    swapped: bool = False  # values first
    constant: bool | None = None
    weighted_values: WeightedValues | None = None
    from_slices: bool = False  # several products taken as one
    alike: bool = True  # whether the queries of these have the same axes

    @classmethod
    def of_sum(cls, spread: WeightedValues, output: Tensor) -> Contraction:
        """Weights times values, summed."""
        weights = spread.box.tensor
        assert weights is not None
        return cls(
            weights,
            spread.box.dims,
            spread.uses,
            spread.value,
            spread.value_dims,
            spread.value_view,
            output,
            spread.mark,
            constant=spread.constant,
            weighted_values=spread,
        )

    @property
    def box(self) -> Box | None:
        return self.mark.before if self.weighted_values is None else self.weighted_values.box

    def tensor(self) -> Tensor | None:
        """The tensor whose storage holds the weights before dropout."""
        return self.weights if self.box is None else self.box.tensor

    def layout(self, roles: Roles) -> Layout | None:
        """The layout of (batch, head, query, key) in that storage; None if unknown."""
        tensor = self.tensor()
        assert tensor is not None
        axes = roles.axes
        if self.box is not None and self.weighted_values is None:
            before = _weight_axes(tensor, self.box.dims, self.uses)
            axes = tuple(_the_same(role, before) for role in axes)
            if any(axis is None for role in axes for axis in role):
                return None
        return Layout(
            tuple(tuple((axis.size, axis.stride) for axis in role) for role in axes),
            int(tensor.storage_offset()),
        )

    @property
    def sliced(self) -> bool:
        """Whether some keys of the softmax are missing here."""
        softmax_output = self.mark.candidate.softmax_output
        if (
            softmax_output is None
            or self.weighted_values is not None
            or self.mark.before is not None
        ):
            return False
        keys = math.prod(size for size, _ in self._key_pieces())
        return keys < math.prod(size for size, _ in self._softmax_keys())

    def _softmax_keys(self) -> list[tuple[int, Origin]]:
        softmax_output, keys = self.mark.candidate.softmax_output, self.mark.candidate.keys
        dims = [] if softmax_output is None else softmax_output.dims
        return [piece for pieces in dims for piece in pieces if piece[1] in keys]

    def _start(self) -> tuple[int, int]:
        """The storage and offset of the weights."""
        return int(self.weights.untyped_storage()._cdata), int(self.weights.storage_offset())

    def _key_pieces(self) -> list[tuple[int, Origin]]:
        return [piece for pieces in self.dims for piece in pieces if self.uses[piece[1]] == "key"]

    def _rows(self) -> set[Origin]:
        return {origin for origin, use in self.uses.items() if use == "row"}

    def joined(self, other: Contraction) -> Contraction | None:
        """Two products of one softmax, with some keys each, as one product with all keys."""
        candidate = self.mark.candidate
        softmax_output = candidate.softmax_output
        if softmax_output is None or softmax_output.tensor is None:
            return None
        counts = [math.prod(size for size, _ in each._key_pieces()) for each in (self, other)]
        together = math.prod(size for size, origin in self._softmax_keys())
        if sum(counts) != together or self._start() == other._start():
            return None
        uses = {
            origin: "key" if candidate.has_key(origin) else self.uses.get(origin, "shared")
            for pieces in softmax_output.dims
            for _, origin in pieces
        }
        return replace(
            self,
            weights=softmax_output.tensor,
            dims=softmax_output.dims,
            uses=uses,
            from_slices=True,
            alike=self._rows() <= other._rows() or other._rows() <= self._rows(),
        )

    def same_parameter(self) -> bool:
        """Whether the keys of the values are the same learned axis as those of the scores."""
        if self.weighted_values is not None or not self.mark.candidate.keys:
            return False
        pieces = self.value_dims[-1 if self.swapped else -2]
        score_keys = {origin.ancestor for origin in self.mark.candidate.keys}
        value_keys = {origin.ancestor for _, origin in pieces}
        learned = all(origin.kind == "parameter" for origin in score_keys)
        return bool(score_keys) and score_keys == value_keys and learned

    def arranged(self, tensor: Tensor, roles: Roles) -> Tensor:
        """A tensor of the weights' shape as (batch, head, query, key)."""
        axes = _weight_axes(self.weights, self.dims, self.uses)
        order = [axes.index(axis) for role in roles.axes for axis in role]
        shape = [math.prod(axis.size for axis in role) for role in roles.axes]
        return tensor.reshape([axis.size for axis in axes]).permute(order).reshape(shape)

    def arranged_box(self, box: Box, roles: Roles) -> Tensor | None:
        """Held weights from before the product, as (batch, head, query, key)."""
        if box.tensor is None:
            return None
        if box.tensor.shape == self.weights.shape and box.dims == self.dims:
            return self.arranged(box.tensor, roles)
        before = _weight_axes(box.tensor, box.dims, self.uses)
        axes = [_the_same(role, before) for role in roles.axes]
        if sum(map(len, axes)) != len(before) or any(
            axis is None for role in axes for axis in role
        ):
            return None
        layout = tuple(tuple((axis.size, axis.stride) for axis in role) for role in axes)
        return Layout(layout, int(box.tensor.storage_offset())).view(box.tensor)

    def value(self, roles: Roles) -> Layout | None:
        """The layout of the values as (batch, group, key, width); None if it is another."""
        if self.weighted_values is not None or self.from_slices:
            return None
        values = self.values.mT if self.swapped else self.values
        offset = int(values.storage_offset())
        inner = tuple(
            ((size, step),) for size, step in zip(values.shape[-2:], values.stride()[-2:])
        )
        if values.dim() == 2:
            batch = math.prod(axis.size for axis in roles.batch)
            return Layout((((batch, 0),), (), *inner), offset)
        axes = _weight_axes(self.weights, self.dims, self.uses)
        shared = [axis for axis in axes if axis.use == "shared"]
        steps, step = {}, values.stride(0)
        for axis in reversed(shared):
            steps[axis] = step
            step *= axis.size
        if math.prod(axis.size for axis in shared) != values.shape[0]:
            return None
        outer = []
        if any(axis not in steps for axis in roles.batch):
            return None
        for role in (roles.batch, roles.head):  # heads among the rows share their values
            outer.append(tuple((axis.size, steps[axis]) for axis in role if axis in steps))
        return Layout((*outer, *inner), offset)

    def roles(self, hints: set[int]) -> Roles:
        """Assign the axes; `hints` are head counts among the module's attributes."""
        axes = _weight_axes(self.weights, self.dims, self.uses)
        key = [axis for axis in axes if axis.use == "key"]
        rows = [axis for axis in axes if axis.use == "row"]
        shared = [axis for axis in axes if axis.use == "shared"]
        summed, widths = self._widths()
        head = [axis for axis in rows if axis.origin.ancestor in summed]
        learned = [axis for axis in rows if axis.origin.ancestor.kind == "parameter"]
        if not head and len(learned) < len(rows):  # heads are an axis of the projection
            head = learned
        query = [axis for axis in rows if axis not in head]
        pairs = self._value_origins()
        cut = [axis for axis in shared if {axis.origin.ancestor, pairs.get(axis.origin)} & widths]
        cut = cut or [axis for axis in shared if axis.origin.kind == "feature"]
        cut = cut or [axis for axis in shared if _of_channels(axis, bool(summed))]
        head = [axis for axis in axes if axis in head or axis in cut]
        batch = [axis for axis in shared if axis not in head]
        gathered = False
        if not query:  # every query has keys of its own, or there is one query
            roots = {axis.origin.ancestor for axis in key}
            query = [axis for axis in batch if axis.origin.ancestor in roots and _is_uncut(axis)]
            batch = [axis for axis in batch if axis not in query]
            gathered = bool(query) and any(axis.origin.gathered for axis in key)
        if not query and self._has_keys_alone():
            query, batch = batch, []
        if len(query) > 1 and not batch:
            batch, query = _folded_batch(query)
        # one query each of several examples, or several queries with keys of their own?
        chosen = any(axis.origin.ancestor.kind != "data" or axis.origin.gathered for axis in key)
        certain = self.alike and (bool(query) or len(batch) < 2 or not chosen)
        certain = certain and (bool(query) or not self._may_be_queries(batch))
        if not head:
            last = [*self.mark.candidate.widths, *(axis.origin for axis in key)]
            with_heads = any(origin.ancestor.dim == (3, 4) for origin in last)
            batch, head, hinted = _by_hints(batch, with_heads, key, hints)
            certain = certain and hinted and not self._may_hold_heads(batch, hints)
        order = self._in_order
        return Roles(order(batch), order(head), order(query), order(key), certain, gathered)

    def _has_keys_alone(self) -> bool:
        """Whether the values are (key, width), without a batch, repeated for each example."""
        key = -1 if self.swapped else -2
        if self.weighted_values is not None or len(self.value_dims) != 3:
            return False
        repeated = all(origin.kind == "expanded" for _, origin in self.value_dims[0])
        first = [origin.ancestor.dim in ((0, 1), (0, 2)) for _, origin in self.value_dims[key]]
        return repeated and first == [True] and _is_first(self.dims[0])

    def _may_be_queries(self, batch: list[WeightAxis]) -> bool:
        """Whether (example, key) may as well be (query, key): neither scores nor values had a
        feature axis to tell."""
        return len(batch) == 1 and not self._widths()[1] and _is_first(self.dims[0])

    def _may_hold_heads(self, batch: list[WeightAxis], hints: set[int]) -> bool:
        """Whether the inputs may be (batch × head, position, width): the module has a head count,
        and no head axis was split off."""
        if (
            self.weighted_values is not None
            or len(batch) != 1
            or batch[0].origin.ancestor.dim != (0, 3)
        ):
            return False
        uncut = [
            size == origin.ancestor.size and origin.ancestor.dim == (2, 3)
            for size, origin in self.value_dims[-2 if self.swapped else -1]
        ]
        return uncut == [True] and any(n > 1 and batch[0].size % n == 0 for n in hints)

    def _in_order(self, axes: list[WeightAxis]) -> list[WeightAxis]:
        """Axes in the order of the softmax's dimensions."""
        origins = self.mark.candidate.origins
        last = len(origins)
        return sorted(
            axes,
            key=lambda axis: origins.index(axis.origin) if axis.origin in origins else last,
        )

    def of_edges(self, weights: Tensor, kind: Kind, queries: int) -> Edges | None:
        """Weights (1, head, 1, edge) of a softmax over edges; None if the pairs are unknown."""
        segments = self.mark.candidate.segments
        assert segments is not None
        dim = self.mark.candidate.key
        edge = [origin for _, origin in self.value_dims[dim]]
        located = positions(self.value_view, edge, weights.device) if edge else None
        if located is None and (len(segments) < 2 or queries == 1):  # an axis of one is no axis
            beside = [o for at, each in enumerate(self.value_dims) for _, o in each if at != dim]
            nodes = other_axes(self.value_view, beside)
            located = None if nodes is None else positions(self.value_view, nodes, weights.device)
        if located is None:
            return None
        key_numbers, keys = located
        query_index = _of_heads(segments, weights)
        key_index = _of_heads(along_dim(key_numbers, dim), weights)
        if query_index is None or key_index is None:
            return None
        return Edges(
            query_index,
            key_index,
            weights.flatten(2),
            queries,
            keys,
            of=kind,
        )

    def edges(self, roles: Roles, weights: Tensor, kind: Kind) -> Edges | None:
        """Weights (batch, head, query, chosen key) as edges; None if the keys are unknown."""
        axes = [axis.origin for axis in roles.key]
        located = positions(self.value_view, axes, weights.device)
        if located is None:
            return None
        key_numbers = self.arranged(self._along_weights(located[0]), roles)
        outside = key_numbers < 0  # padding
        if bool(outside.any()):
            kind = "partial" if kind == "distribution" else kind
            weights = weights.masked_fill(outside, 0.0)
        queries = torch.arange(weights.shape[2], device=weights.device)
        key_index = key_numbers.clamp(min=0).flatten(2)
        return Edges(
            queries.repeat_interleave(weights.shape[3]).expand_as(key_index),
            key_index,
            weights.flatten(2),
            weights.shape[2],
            located[1],
            of=kind,
        )

    def _along_weights(self, numbers: Tensor) -> Tensor:
        """Numbers of the values' entries, broadcast to the weights."""
        if self.weighted_values is None:
            features, rows = (-2, -1) if self.swapped else (-1, -2)
            return numbers.select(features, 0).unsqueeze(rows).expand(self.weights.shape)
        shape = self.weighted_values.shape
        while numbers.dim() > len(shape):
            numbers = numbers[0]
        for dim in range(-1, -numbers.dim() - 1, -1):
            if shape[dim] == 1:
                numbers = numbers.narrow(dim, 0, 1)
        return numbers.expand(shape).reshape(self.weights.shape)

    def _widths(self) -> tuple[set[Origin], set[Origin]]:
        """Axes summed for the scores; these with the value axes that remain in the output."""
        summed = {origin.ancestor for origin in self.mark.candidate.widths}
        if self.weighted_values is not None:
            free = self._free_dims()
        else:
            free = [self.value_dims[-2 if self.swapped else -1]]
        return summed, summed | {origin.ancestor for pieces in free for _, origin in pieces}

    def _value_origins(self) -> dict[Origin, Origin]:
        """The ancestor in the values of each axis that weights and values share."""
        pairs: dict[Origin, Origin] = {}
        shift = len(self.value_dims) - len(self.dims)
        for dim, pieces in enumerate(self.dims):
            theirs = self.value_dims[dim + shift] if 0 <= dim + shift < len(self.value_dims) else ()
            if [size for size, _ in pieces] == [size for size, _ in theirs]:
                for (_, mine), (_, other) in zip(pieces, theirs):
                    if self.uses.get(mine) == "shared":
                        pairs[mine] = other.ancestor
        return pairs

    def _free_dims(self) -> Dims:
        """Dimensions of the values over which weights were broadcast."""
        assert self.weighted_values is not None
        weights = self.weights
        shift = len(self.value_dims) - weights.dim()
        return [
            pieces
            for dim, pieces in enumerate(self.value_dims)
            if dim < shift or weights.shape[dim - shift] == 1
        ]


def _of_heads(index: Tensor, weights: Tensor) -> Tensor | None:
    """An index of edges, (edge,) or (edge, …), for weights (batch, head, 1, edge).

    None where features, or both examples and heads, have an index each.
    """
    if index.dim() == 1:
        return index[None, None]
    batch, heads, _, edges = weights.shape
    if min(batch, heads) > 1 or index.numel() % (batch * heads * edges):
        return None
    columns = index.reshape(edges, batch * heads, -1)
    if bool((columns != columns[..., :1]).any()):
        return None
    return columns[..., 0].T.reshape(batch, heads, edges).contiguous()


def _weight_axes(tensor: Tensor, dims: Dims, uses: Uses) -> list[WeightAxis]:
    """The axes of weights in the order of their dimensions, each with its use."""
    axes: list[WeightAxis] = []
    for pieces, stride in zip(dims, tensor.stride()):
        inner = []
        for size, origin in reversed(pieces):
            inner.append(WeightAxis(size, stride, origin, uses.get(origin, "shared")))
            stride *= size
        axes.extend(reversed(inner))
    return axes


def _the_same(axes: list[WeightAxis], before: list[WeightAxis]) -> list[WeightAxis]:
    """The same axes before dropout, where the layout may differ."""
    return [
        next((other for other in before if other.origin is axis.origin), None)  # type: ignore[misc]
        for axis in axes
    ]


def _of_channels(axis: WeightAxis, others: bool) -> bool:
    """Whether an axis is cut out of features, or of the last of an input's three dimensions. All of
    that dimension counts only if no `others` were summed for the scores: it may be a batch."""
    ancestor = axis.origin.ancestor
    last = ancestor.dim == (2, 3) and ancestor.kind == "data"
    return axis.origin.kind == "feature" or (last and (axis.size < ancestor.size or not others))


def _is_first(pieces: tuple[Piece, ...]) -> bool:
    """Whether a dimension is the first of an input with at most a feature axis beside it."""
    return [origin.ancestor.dim in ((0, 1), (0, 2)) for _, origin in pieces] == [True]


def _is_uncut(axis: WeightAxis) -> bool:
    """Whether an axis was not cut out of a longer one."""
    origin = axis.origin.root
    while origin.base is not None:
        before = origin.base.root
        if before.size != origin.size and origin.kind != "gathered":
            return False
        origin = before
    return True


def _folded_batch(query: list[WeightAxis]) -> tuple[list[WeightAxis], list[WeightAxis]]:
    """Examples among the rows, if all of them attend to the same keys."""
    first, *rest = query
    ancestor = first.origin.ancestor
    repeated = ancestor.kind in ("expanded", "unknown") and rest[0].origin.kind != ancestor.kind
    if repeated or (ancestor.dim is not None and ancestor.dim[0] == 0 and ancestor.dim[1] >= 3):
        return [first], rest
    return [], query


def _by_hints(
    batch: list[WeightAxis], with_heads: bool, key: list[WeightAxis], hints: set[int]
) -> tuple[list[WeightAxis], list[WeightAxis], bool]:
    """Heads among shared axes none of which is known to be cut out of features.

    `with_heads`: whether the last of four dimensions was summed, or is a key axis.
    """
    # (batch, head, key, width), or (batch, key, head, width); after a linear map only a hint tells
    key_dims = {axis.origin.ancestor.dim for axis in key}
    second = (2, 4) if key_dims & {(0, 4), (1, 4)} else (1, 4)
    for index, axis in enumerate(batch):
        fits = (with_heads or (2, 4) in key_dims) and axis.size in hints
        if axis.origin.ancestor.dim == second and (fits or (with_heads and not hints)):
            # keys first and no head count: examples may come before or after them
            certain = (0, 4) not in key_dims or fits
            return [*batch[:index], *batch[index + 1 :]], [axis], certain
    unknown = [axis for axis in batch if axis.origin.ancestor.kind == "unknown"]
    if not unknown:
        return batch, [], True
    fitting = [axis for axis in unknown if axis.size in hints]
    if len(fitting) == 1:
        return [axis for axis in batch if axis not in fitting], fitting, True
    return batch, [], False
