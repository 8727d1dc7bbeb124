"""Which axis of found weights is batch, head, query and key: told by the product that used them.

The axis summed over is the keys; axes of the weights alone are queries; axes that weights and
values share are batch, heads, or the queries of values that each query has for itself (gathered
keys). Where an axis came from tells these apart: heads are cut out of the axis along which query
and key were multiplied, or of the features of the values; an axis of the same input as the keys is
the queries'.
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
from regard.tracing.dataflow.movement import View, along_dim, other_axes, positions
from regard.tracing.dataflow.tags import Box, Mark, Use, Uses, WeightedValues
from regard.types import Kind


class Part(NamedTuple):
    """An axis of the weights, or a part of one, where they met the values."""

    size: int
    stride: int  # in elements
    origin: Origin
    use: Use


class Roles(NamedTuple):
    """The parts that make up each axis of (batch, head, query, key)."""

    batch: list[Part]
    head: list[Part]
    query: list[Part]
    key: list[Part]
    certain: bool = True  # whether something told which is which
    gathered: bool = False  # whether every query has keys of its own, chosen from all

    @property
    def axes(self) -> tuple[list[Part], ...]:
        return self.batch, self.head, self.query, self.key


@dataclass(frozen=True)
class Contraction:
    """Weights that met values: the product, and what each axis of the weights is in it."""

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
    from_slices: bool = False  # whether several products are taken as one
    alike: bool = True  # whether the queries of these lie along the same axes

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
        """How (batch, head, query, key) lie in that storage; None where it cannot be told."""
        tensor = self.tensor()
        assert tensor is not None
        axes = roles.axes
        if self.box is not None and self.weighted_values is None:
            before = _parts(tensor, self.box.dims, self.uses)
            axes = tuple(_the_same(parts, before) for parts in axes)
            if any(part is None for parts in axes for part in parts):
                return None
        return Layout(
            tuple(tuple((part.size, part.stride) for part in parts) for parts in axes),
            int(tensor.storage_offset()),
        )

    @property
    def sliced(self) -> bool:
        """Whether some keys of the softmax are not among these."""
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
        """Where the weights of a product begin."""
        return int(self.weights.untyped_storage()._cdata), int(self.weights.storage_offset())

    def _key_pieces(self) -> list[tuple[int, Origin]]:
        return [piece for pieces in self.dims for piece in pieces if self.uses[piece[1]] == "key"]

    def _rows(self) -> set[Origin]:
        return {origin for origin, use in self.uses.items() if use == "row"}

    def joined(self, other: Contraction) -> Contraction | None:
        """Two products with some keys each, of one softmax: as one with all of them."""
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
        mine = {origin.ancestor for origin in self.mark.candidate.keys}
        theirs = {origin.ancestor for _, origin in pieces}
        return bool(mine) and mine == theirs and all(o.kind == "parameter" for o in mine)

    def arranged(self, tensor: Tensor, roles: Roles) -> Tensor:
        """A tensor of the weights' shape as (batch, head, query, key)."""
        parts = _parts(self.weights, self.dims, self.uses)
        order = [parts.index(part) for role in roles.axes for part in role]
        shape = [math.prod(part.size for part in role) for role in roles.axes]
        return tensor.reshape([part.size for part in parts]).permute(order).reshape(shape)

    def arranged_box(self, box: Box, roles: Roles) -> Tensor | None:
        """What is held of the weights before the product, as (batch, head, query, key)."""
        if box.tensor is None:
            return None
        if box.tensor.shape == self.weights.shape and box.dims == self.dims:
            return self.arranged(box.tensor, roles)
        before = _parts(box.tensor, box.dims, self.uses)
        axes = [_the_same(parts, before) for parts in roles.axes]
        if sum(map(len, axes)) != len(before) or any(part is None for ps in axes for part in ps):
            return None
        layout = tuple(tuple((part.size, part.stride) for part in parts) for parts in axes)
        return Layout(layout, int(box.tensor.storage_offset())).view(box.tensor)

    def value(self, roles: Roles) -> Layout | None:
        """How (batch, group, key, width) lie among the values, where the product shows them so."""
        if self.weighted_values is not None or self.from_slices:
            return None
        values = self.values.mT if self.swapped else self.values
        offset = int(values.storage_offset())
        inner = tuple(
            ((size, step),) for size, step in zip(values.shape[-2:], values.stride()[-2:])
        )
        if values.dim() == 2:
            batch = math.prod(part.size for part in roles.batch)
            return Layout((((batch, 0),), (), *inner), offset)
        parts = _parts(self.weights, self.dims, self.uses)
        shared = [part for part in parts if part.use == "shared"]
        steps, step = {}, values.stride(0)
        for part in reversed(shared):
            steps[part] = step
            step *= part.size
        if math.prod(part.size for part in shared) != values.shape[0]:
            return None
        outer = []
        if any(part not in steps for part in roles.batch):
            return None
        for role in (roles.batch, roles.head):  # heads among the rows share their values
            outer.append(tuple((part.size, steps[part]) for part in role if part in steps))
        return Layout((*outer, *inner), offset)

    def roles(self, hints: set[int]) -> Roles:
        """Which axis is which; `hints` are numbers of heads that the module speaks of."""
        parts = _parts(self.weights, self.dims, self.uses)
        key = [part for part in parts if part.use == "key"]
        rows = [part for part in parts if part.use == "row"]
        shared = [part for part in parts if part.use == "shared"]
        summed, widths = self._widths()
        head = [part for part in rows if part.origin.ancestor in summed]
        learned = [part for part in rows if part.origin.ancestor.kind == "parameter"]
        if not head and len(learned) < len(rows):  # heads are an axis of the projection's own
            head = learned
        query = [part for part in rows if part not in head]
        pairs = self._value_origins()
        cut = [part for part in shared if {part.origin.ancestor, pairs.get(part.origin)} & widths]
        cut = cut or [part for part in shared if _of_channels(part, bool(summed))]
        head = [part for part in parts if part in head or part in cut]
        batch = [part for part in shared if part not in head]
        gathered = False
        if not query:  # every query has keys of its own, or there is one query
            roots = {part.origin.ancestor for part in key}
            query = [part for part in batch if part.origin.ancestor in roots and _is_uncut(part)]
            batch = [part for part in batch if part not in query]
            gathered = bool(query) and any(part.origin.gathered for part in key)
        if not query and self._has_keys_alone():
            query, batch = batch, []
        if len(query) > 1 and not batch:
            batch, query = _folded_batch(query)
        # one query each of several examples, or several queries with keys of their own?
        chosen = any(part.origin.ancestor.kind != "data" or part.origin.gathered for part in key)
        certain = self.alike and (bool(query) or len(batch) < 2 or not chosen)
        certain = certain and (bool(query) or not self._may_be_queries(batch))
        if not head:
            last = [*self.mark.candidate.widths, *(part.origin for part in key)]
            with_heads = any(origin.ancestor.dim == (3, 4) for origin in last)
            batch, head, told = _by_hints(batch, with_heads, key, hints)
            certain = certain and told and not self._may_hold_heads(batch, hints)
        order = self._in_order
        return Roles(order(batch), order(head), order(query), order(key), certain, gathered)

    def _has_keys_alone(self) -> bool:
        """Whether the values were rows of keys, without examples, and were repeated for each of
        the weights'."""
        key = -1 if self.swapped else -2
        if self.weighted_values is not None or len(self.value_dims) != 3:
            return False
        repeated = all(origin.kind == "expanded" for _, origin in self.value_dims[0])
        first = [origin.ancestor.dim in ((0, 1), (0, 2)) for _, origin in self.value_dims[key]]
        return repeated and first == [True] and _is_first(self.dims[0])

    def _may_be_queries(self, batch: list[Part]) -> bool:
        """Whether (example, key) may as well be (query, key): neither scores nor values had
        features, that would follow them."""
        return len(batch) == 1 and not self._widths()[1] and _is_first(self.dims[0])

    def _may_hold_heads(self, batch: list[Part], hints: set[int]) -> bool:
        """Whether inputs (batch × head, position, width) may have come folded: the module speaks of
        heads, and nothing was cut."""
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

    def _in_order(self, parts: list[Part]) -> list[Part]:
        """Axes in the order of the softmax's dimensions, whatever the product made of it."""
        origins = self.mark.candidate.origins
        last = len(origins)
        return sorted(
            parts,
            key=lambda part: origins.index(part.origin) if part.origin in origins else last,
        )

    def of_edges(self, weights: Tensor, kind: Kind, queries: int) -> Edges | None:
        """Weights (1, head, 1, edge) of a softmax over edges; None where pairs cannot be told."""
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
        places, keys = located
        query_index = _of_heads(segments, weights)
        key_index = _of_heads(along_dim(places, dim), weights)
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
        """Weights (batch, head, query, chosen key) of keys that were chosen, with which they are.

        None where that cannot be told.
        """
        axes = [part.origin for part in roles.key]
        located = positions(self.value_view, axes, weights.device)
        if located is None:
            return None
        places, keys = self._along_weights(located[0]), located[1]
        places = self.arranged(places, roles)
        outside = places < 0  # padding
        if bool(outside.any()):
            kind = "partial" if kind == "distribution" else kind
            weights = weights.masked_fill(outside, 0.0)
        queries = torch.arange(weights.shape[2], device=weights.device)
        key_index = places.clamp(min=0).flatten(2)
        return Edges(
            queries.repeat_interleave(weights.shape[3]).expand_as(key_index),
            key_index,
            weights.flatten(2),
            weights.shape[2],
            keys,
            of=kind,
        )

    def _along_weights(self, numbers: Tensor) -> Tensor:
        """Numbers of the values' entries, one for each weight."""
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
        """Axes summed to make the scores; these and those of the values left in the output."""
        summed = {origin.ancestor for origin in self.mark.candidate.widths}
        if self.weighted_values is not None:
            free = self._free_dims()
        else:
            free = [self.value_dims[-2 if self.swapped else -1]]
        return summed, summed | {origin.ancestor for pieces in free for _, origin in pieces}

    def _value_origins(self) -> dict[Origin, Origin]:
        """For axes that weights and values share: where that of the values was first taken from."""
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
        """Dimensions of the values in which weights were stretched."""
        assert self.weighted_values is not None
        weights = self.weights
        shift = len(self.value_dims) - weights.dim()
        return [
            pieces
            for dim, pieces in enumerate(self.value_dims)
            if dim < shift or weights.shape[dim - shift] == 1
        ]


def _of_heads(index: Tensor, weights: Tensor) -> Tensor | None:
    """An index of edges, (edge,) or (edge, …), beside weights (batch, head, 1, edge).

    None where features have their own, or both examples and heads.
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


def _parts(tensor: Tensor, dims: Dims, uses: Uses) -> list[Part]:
    """The axes of weights in the order of their dimensions, with what the product does to each."""
    parts: list[Part] = []
    for pieces, stride in zip(dims, tensor.stride()):
        inner = []
        for size, origin in reversed(pieces):
            inner.append(Part(size, stride, origin, uses.get(origin, "shared")))
            stride *= size
        parts.extend(reversed(inner))
    return parts


def _the_same(parts: list[Part], before: list[Part]) -> list[Part]:
    """The same axes before dropout, where the weights may have lain in another way."""
    return [
        next((other for other in before if other.origin is part.origin), None)  # type: ignore[misc]
        for part in parts
    ]


def _of_channels(part: Part, others: bool) -> bool:
    """Whether an axis is cut out of features, or of the last of an input's three dimensions; all
    of it where no `others` were summed for the scores: else it may be examples, that come last."""
    ancestor = part.origin.ancestor
    last = ancestor.dim == (2, 3) and ancestor.kind == "data"
    return part.origin.kind == "feature" or (last and (part.size < ancestor.size or not others))


def _is_first(pieces: tuple[Piece, ...]) -> bool:
    """Whether a dimension is the first of an input that has at most features beside it."""
    return [origin.ancestor.dim in ((0, 1), (0, 2)) for _, origin in pieces] == [True]


def _is_uncut(part: Part) -> bool:
    """Whether a part is an axis as it was made, not one that was cut out of a longer one."""
    origin = part.origin.root
    while origin.base is not None:
        before = origin.base.root
        if before.size != origin.size and origin.kind != "gathered":
            return False
        origin = before
    return True


def _folded_batch(query: list[Part]) -> tuple[list[Part], list[Part]]:
    """Examples among the rows, where all of them look at the same keys."""
    first, *rest = query
    ancestor = first.origin.ancestor
    repeated = ancestor.kind in ("expanded", "unknown") and rest[0].origin.kind != ancestor.kind
    if repeated or (ancestor.dim is not None and ancestor.dim[0] == 0 and ancestor.dim[1] >= 3):
        return [first], rest
    return [], query


def _by_hints(
    batch: list[Part], with_heads: bool, key: list[Part], hints: set[int]
) -> tuple[list[Part], list[Part], bool]:
    """Heads among shared axes of which none is known to be cut out of features.

    `with_heads`: the last of an input's four dimensions, or of the scores', is one of these.
    """
    # (batch, head, key, width), or (batch, key, head, width); after a linear map only a hint tells
    places = {part.origin.ancestor.dim for part in key}
    second = (2, 4) if places & {(0, 4), (1, 4)} else (1, 4)
    for index, part in enumerate(batch):
        fits = (with_heads or (2, 4) in places) and part.size in hints
        if part.origin.ancestor.dim == second and (fits or (with_heads and not hints)):
            # keys first, and nobody speaks of heads: examples may come before them or behind
            certain = (0, 4) not in places or fits
            return [*batch[:index], *batch[index + 1 :]], [part], certain
    unknown = [part for part in batch if part.origin.ancestor.kind == "unknown"]
    if not unknown:
        return batch, [], True
    fitting = [part for part in unknown if part.size in hints]
    if len(fitting) == 1:
        return [part for part in batch if part not in fitting], fitting, True
    return batch, [], False
