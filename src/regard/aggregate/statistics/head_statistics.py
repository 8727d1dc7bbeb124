"""Figures of every head, from one walk over the tiles of each attention.

>>> import torch
>>> from regard.aggregate.statistics.head_statistics import head_statistics
>>> weights = torch.eye(6).roll(1, 0)  # each query looks at the key before it
>>> (figures,) = head_statistics(weights.expand(1, 2, 6, 6))
>>> figures.previous, figures.distance
(tensor([1., 1.], dtype=torch.float64), tensor([1.6667, 1.6667], dtype=torch.float64))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate.sources import NO_TYPE, Layer, check_shares, layers_of
from regard.aggregate.statistics.token_positions import Positions, positions_of
from regard.errors import RegardError, ShapeError
from regard.kernel.reduce import reduce
from regard.kernel.reducers import Entropy, Offsets, ReceivedAttention, Repeats, WeightedSum
from regard.kernel.reducers.base import Matrix, Reducer, Sum
from regard.recipe import Edges, Recipe
from regard.types import Kind, Shape

_NOTHING = 0.01  # nats from even attention below which there is nothing to explain
SINK = 0.4  #: share of a head's attention from which what receives it is a sink

PerHead = Float[Tensor, " head"]
PerQuery = Float[Tensor, "batch head query"]
Keys = Bool[Tensor, "batch head key"]
TileWalk = Callable[[Recipe, Sequence[Reducer]], Sequence[Tensor]]  #: such as `reduce`


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Figures of the heads of one attention, (head,) each, in float64; NaN where there is none.

    Means are over the real queries of the batch that attend to something.
    """

    name: str
    entropy: PerHead  #: of a row, in nats
    evenness: PerHead  #: entropy over that of even attention to all keys in sight
    effective: PerHead  #: number of keys a row rests on, 1 / Σⱼ Aᵢⱼ²
    distance: PerHead  #: |i − j| to what is attended to
    spread: PerHead  #: standard deviation of that distance
    itself: PerHead  #: weight on the query's own position
    previous: PerHead  #: weight on the position before, of queries that have one
    next: PerHead  #: weight on the position after, of queries that have one
    sink: PerHead  #: weight on the first real key
    special: PerHead  #: weight on special tokens
    local: PerHead  #: weight within the window, on both sides
    peak: PerHead  #: the largest share of all attention that one key receives
    induction: PerHead  #: weight on what followed earlier copies of the query's token
    duplicate: PerHead  #: weight on earlier copies of the query's token
    positional: PerHead  #: share of the pattern that relative position explains
    aside: PerHead  #: weight on special tokens and on keys that receive 40 % of all attention
    received: Float[Tensor, "batch head key"]  #: mean weight that each key receives
    offsets: Float[Tensor, "head offset"] | None  #: share of each j − i, from 1 − keys on
    queries: int  #: how many queries are real
    repeats: int  #: how many of them have an earlier copy to induce from
    rest: Mapping[str, PerHead] | None  #: figures of the attention that is left without `aside`


#: Names of the figures that are one number a head.
FIGURES = tuple(field.name for field in fields(HeadStatistics))[1:-5]


def head_statistics(
    attention: Any,
    *,
    tokens: Any = None,
    real: Any = None,
    special: Any = None,
    window: int = 4,
    cross: bool | None = None,
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> list[HeadStatistics]:
    """Figures of every head, layer by layer; streamed, so that no matrix is materialised.

    Args:
        attention: a Trace, a Record, a tensor, or a list of records or tensors.
        tokens: at each position, as numbers or words, (key,) or (batch, key); those of the record
            when None. Without them there is no `induction` and no `duplicate`.
        real: which positions are not padding, (position,) or (batch, position), such as a model's
            attention mask; all when None. In cross-attention these are queries.
        special: which keys are special tokens: positions, or a boolean tensor (key,) or
            (batch, key). When None they are recognised by spelling, if tokens are words.
        window: how many positions to each side are local.
        cross: whether queries and keys are different sequences, in which nothing is before or
            after; when None, as the record says; where it does not know, or is a tensor, when
            queries outnumber keys, and for a record also when they are fewer. Edges without tokens
            may be a graph, whose nodes have no order: False says that they are a sequence.
        part: of the trace of an encoder–decoder model, "encoder", "decoder" or "cross".
        axes: the order of a tensor's axes, as "layer batch head query key".
        kind: what the rows of tensors are.
    """
    layers = layers_of(attention, axes=axes, kind=kind, part=part)
    return [statistics_of(layer, window, cross, tokens, real, special) for layer in layers]


def statistics_of(
    layer: Layer,
    window: int,
    cross: bool | None,
    tokens: Any,
    real: Any,
    special: Any,
    walk: TileWalk | None = None,
) -> HeadStatistics:
    """Figures of one layer; see `head_statistics`. `walk` takes the place of `reduce`, so that
    others may see the same tiles."""
    if type(window) is not int or window < 1:
        raise RegardError(f"window={window!r}, expected a whole number of positions from 1")
    check_shares(layer, NO_TYPE)
    recipe = layer.recipe
    if 0 in recipe.shape:
        raise ShapeError(f"{layer.name}: there is nothing in an attention {tuple(recipe.shape)}")
    explicit = cross is not None
    if cross is None:
        cross = is_cross(layer)
    elif not cross and recipe.shape.queries > recipe.shape.keys:
        raise ShapeError(
            f"{layer.name}: cross=False, but {recipe.shape.queries} queries for "
            f"{recipe.shape.keys} keys are no self-attention"
        )
    positions = positions_of(layer, cross, tokens, real, special)
    graph = isinstance(recipe, Edges) and positions.tokens is None and not explicit
    first = _Walk(recipe, positions, not (cross or graph), walk)
    figures, received = _figures(first, window)
    if graph:
        figures["sink"] = figures["sink"] * math.nan
    sinks = _sinks(first, received)
    column_sums = first.answers["received"][:, :, 0]
    figures["aside"] = (column_sums * sinks).sum((0, 2)) / first.number()
    rest = None
    if bool((figures["aside"] >= SINK).any()):
        rest, _ = _figures(_Walk(recipe, positions, first.ordered, kept=~sinks), window)
    copies = first.scores["induction"].found(first.shape.queries) if first.scores else None
    return HeadStatistics(
        name=layer.name,
        received=received,
        offsets=_shares(first.answers["offsets"].sum(0)) if first.ordered else None,
        queries=_count(positions.rows, first.shape),
        repeats=0 if copies is None else _count(positions.rows & copies, first.shape),
        rest=rest,
        **figures,
    )


def is_cross(layer: Layer) -> bool:
    """Whether queries and keys are different sequences."""
    _, _, queries, keys = layer.recipe.shape
    recorded = layer.record is not None and layer.record.attends == "cross"
    return queries > keys or recorded or is_guess(layer)


def is_guess(layer: Layer) -> bool:
    """Whether it is unknown: the record does not say, and queries and keys differ in number."""
    _, _, queries, keys = layer.recipe.shape
    return queries != keys and layer.record is not None and layer.record.attends == "unknown"


def layer_numbers(layers: Sequence[Layer]) -> tuple[list[int], bool]:
    """A number for each layer, that of its path where these are distinct, else from 0; and
    whether sites have to be printed to tell layers apart."""
    records = [layer.record for layer in layers]
    numbers = [None if record is None else record.layer for record in records]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return [number for number in numbers if number is not None], False
    bases = {record.site.base for record in records if record is not None}
    return list(range(len(layers))), len(bases) == len(layers)


class _Squares(Sum):
    """Σⱼ Aᵢⱼ² of each row."""

    needs_log_weights = False
    stackable = True

    def start(self, matrix: Matrix) -> None:
        self.total = matrix.zeros(matrix.queries)

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        self.total[..., rows] += torch.linalg.vector_norm(weights, dim=-1).square()


class _Kept(Reducer):
    """Reducers that see no weight on some keys."""

    stackable = True

    def __init__(self, reducers: Sequence[Reducer], keys: Keys) -> None:
        super().__init__()
        self.reducers, self.keys = list(reducers), keys

    def start(self, matrix: Matrix) -> None:
        self.reducers = [reducer.started(matrix) for reducer in self.reducers]
        own = matrix.own_head(self.keys).to(matrix.device, matrix.dtype)
        self.own = own[..., None, :]  # (row, key), and what is stacked

    def tile(
        self, rows: slice, columns: slice, log_weights: Tensor | None, weights: Tensor | None
    ) -> None:
        assert weights is not None
        kept = weights * self.own[..., columns]
        for reducer in self.reducers:
            reducer.tile(rows, columns, log_weights, kept)

    def merge(self, other: Any) -> None:
        for reducer, twin in zip(self.reducers, other.reducers):
            reducer.merge(twin)

    def result(self) -> Any:
        return tuple(reducer.result() for reducer in self.reducers)


class _Walk:
    """One walk over the tiles of an attention, and means of its results, in float64.

    With `kept`, the walk sees the weights on these keys alone, and a row counts as much as the
    weight that it has there, so that means are shares of what is kept.
    """

    def __init__(
        self,
        recipe: Recipe,
        positions: Positions,
        ordered: bool,
        walk: TileWalk | None = None,
        kept: Keys | None = None,
    ) -> None:
        self.recipe, self.shape, self.positions = recipe, recipe.shape, positions
        self.ordered = ordered  # whether a key can be before or after a query
        self.kept = kept
        vectors = [torch.ones_like(positions.keys), positions.is_first]
        vectors += [] if positions.special is None else [positions.special]
        #: (batch or 1, vector, key): 1 for every key, for the first one, for special ones
        self.vectors = torch.stack(torch.broadcast_tensors(*vectors), 1)
        self.scores: dict[str, Repeats] = {}
        if ordered and positions.tokens is not None:
            for after, name in enumerate(("duplicate", "induction")):
                self.scores[name] = Repeats(positions.tokens, after, positions.ordinary)
        self.answers = self._answers(recipe, walk or reduce)
        self.mass = self.answers["sums"][:, :, 0]  # (batch, head, query)
        self.counted = positions.rows[:, None] & (self.mass > 0)
        self.row_weights = self.counted.double() if kept is None else self.counted * self.mass
        #: of each row, divided by its sum
        self.entropy = self.answers["entropy"] / _safe(self.mass) + _safe(self.mass).log()

    def _answers(self, recipe: Recipe, walk: TileWalk) -> dict[str, Tensor]:
        rows, dtype = self.positions.rows, recipe.dtype
        reducers: dict[str, Reducer] = {
            "entropy": Entropy(),
            "squares": _Squares(),
            "sums": WeightedSum(self.vectors[:, None].to(dtype)),
            "received": ReceivedAttention(rows[:, None, None].to(dtype)),
            **self.scores,
        }
        if self.ordered:
            reducers["offsets"] = Offsets(rows, self.positions.keys)
        asked = list(reducers.values())
        if self.kept is None:
            answers = walk(recipe, asked)
        else:
            answers = reduce(recipe, [_Kept(asked, self.kept)])[0]
        return {name: answer.cpu().double() for name, answer in zip(reducers, answers)}

    def number(self, where: Bool[Tensor, "*_ query"] | None = None) -> PerHead:
        """How many rows count, of those in `where`, (query,) or more axes before it."""
        return self._chosen(self.row_weights, where).sum((0, 2))

    def mean(self, values: PerQuery, where: Bool[Tensor, "_ query"] | None = None) -> PerHead:
        """Of sums of weights, over the rows that count, of those in `where`; NaN of none."""
        where = None if where is None else where[:, None]
        return self._chosen(values, where).sum((0, 2)) / self.number(where)

    def average(self, values: PerQuery) -> PerHead:
        """Of what does not grow with the weights, over the rows that count; NaN of none."""
        return (self._chosen(values, None) * self.row_weights).sum((0, 2)) / self.number()

    def _chosen(self, values: PerQuery, where: Bool[Tensor, "*_ query"] | None) -> PerQuery:
        rows = self.counted if where is None else self.counted & where
        return torch.where(rows, values, 0.0)

    @property
    def in_sight(self) -> Bool[Tensor, "batch_or_1 head_or_1 key"]:
        """Keys that are real, and kept."""
        real = self.positions.keys[:, None]
        return real if self.kept is None else real & self.kept


def _sinks(walk: _Walk, received: Float[Tensor, "batch head key"]) -> Keys:
    """Special tokens, and keys that receive that much of a head's attention."""
    special = walk.positions.special
    keys = received >= SINK  # no comparison holds for NaN
    return keys if special is None else keys | special[:, None]


def _figures(
    walk: _Walk, window: int
) -> tuple[dict[str, PerHead], Float[Tensor, "batch head key"]]:
    """Figures by name, and the mean weight that each key receives."""
    answers, positions = walk.answers, walk.positions
    received = answers["received"][:, :, 0] / walk.row_weights.sum(2, keepdim=True)
    nothing = torch.full((walk.shape.heads,), math.nan, dtype=torch.float64)
    sight = _Sight(walk)
    figures = {
        **dict.fromkeys(FIGURES, nothing),
        "entropy": walk.average(walk.entropy),
        "evenness": walk.average(walk.entropy) / sight.even(),
        "effective": walk.average(walk.mass.square() / _safe(answers["squares"])),
        "sink": walk.mean(answers["sums"][:, :, 1]),
        "peak": received.amax(2).nanmean(0),
    }
    if positions.special is not None:
        figures["special"] = walk.mean(answers["sums"][:, :, 2])
    if walk.ordered:
        figures |= _by_position(walk, window) | {"positional": _positional(walk, sight)}
    for name, score in walk.scores.items():
        figures[name] = walk.mean(answers[name], score.found(walk.shape.queries))
    return figures, received


def _by_position(walk: _Walk, window: int) -> dict[str, PerHead]:
    """Figures that follow from the attention at each offset j − i."""
    _, _, queries, keys = walk.shape
    total = walk.answers["offsets"].sum(0)  # (head, offset)
    zero = keys - 1  # index of offset 0
    offset = (torch.arange(total.shape[1]) - zero).double()
    distance = _shares(total) @ offset.abs()  # (head,)
    variance = (_shares(total) * (offset.abs() - distance[:, None]).square()).sum(1)
    padded = F.pad(walk.in_sight, (1, 1))[..., keys - queries :]  # from before the first query on
    return {
        "distance": distance,
        "spread": variance.sqrt(),
        "itself": total[:, zero] / walk.number(),
        "previous": _at_offset(total, zero - 1) / walk.number(padded[..., :queries]),
        "next": _at_offset(total, zero + 1) / walk.number(padded[..., 2:]),
        "local": total[:, offset.abs() <= window].sum(1) / walk.number(),
    }


class _Sight:
    """The keys each query could see: the real ones, up to itself where no head looks ahead; in a
    graph those it has an edge to. Keys that are not kept are none of them."""

    def __init__(self, walk: _Walk) -> None:
        _, _, queries, keys = walk.shape
        self.walk = walk
        self.own = torch.arange(queries) + (keys - queries)  # the position of each query
        self.first = walk.positions.first[:, None]  # (batch or 1, 1)
        self.last = walk.positions.last[:, None]
        if walk.ordered and not walk.answers["offsets"][..., keys:].any():
            self.last = self.own[None]
        number = (self.last - self.first + 1).expand(-1, queries).double()
        self.number = number[:, None]  # (batch or 1, head or 1, query)
        if isinstance(walk.recipe, Edges) and not walk.ordered:
            self.number = _edges_by_query(walk.recipe)
        if walk.kept is not None:
            self.number = self.number - self._hidden()
        self.number = self.number.clamp_min(1)

    def _hidden(self) -> PerQuery:
        """How many keys in sight of each query are not kept."""
        assert self.walk.kept is not None
        hidden = F.pad((~self.walk.kept).double().cumsum(2), (1, 0))
        batch, heads, queries, _ = self.walk.shape
        first, last = (
            end[:, None].expand(batch, heads, queries) for end in (self.first, self.last + 1)
        )
        return hidden.gather(2, last) - hidden.gather(2, first)

    def even(self) -> PerHead:
        """Mean entropy of even attention to all keys in sight."""
        return self.walk.average(self.number.log().expand_as(self.walk.entropy))

    def offsets(self) -> Float[Tensor, "head offset"]:
        """What even attention would put at each offset j − i.

        Each row is a run of equal numbers: +1 where it begins, −1 where it ends, added up. Keys
        that are not kept are taken out again.
        """
        batch, heads, queries, keys = self.walk.shape
        runs = torch.zeros(heads, queries + keys, dtype=torch.float64)
        share = self.walk.row_weights / self.number
        for sign, end in ((1, self.first - self.own), (-1, self.last + 1 - self.own)):
            index = (end + keys - 1).expand(batch, -1).flatten()
            runs.index_add_(1, index, sign * share.transpose(0, 1).flatten(1))
        offsets = runs.cumsum(1)[:, :-1]
        if self.walk.kept is not None:
            for example, head, key in (~self.walk.kept).nonzero().tolist():
                first, last = (
                    end.expand(batch, queries)[example] for end in (self.first, self.last)
                )
                seen = (first <= key) & (key <= last)
                offsets[head].index_add_(0, key - self.own + keys - 1, -share[example, head] * seen)
        return offsets.clamp_min(0.0)


def _edges_by_query(recipe: Edges) -> PerQuery:
    """How many edges each query has, absent ones left out."""
    present = (recipe.edge_weights != 0).double()
    numbers = present.new_zeros(recipe.shape[:3])
    return numbers.scatter_add_(2, recipe.query_index.expand(present.shape), present).cpu()


def _positional(walk: _Walk, sight: _Sight) -> PerHead:
    """How much narrower than even attention the offsets are, over how much narrower rows are."""
    rows = sight.even() - walk.average(walk.entropy)
    offsets = _entropy(sight.offsets()) - _entropy(walk.answers["offsets"].sum(0))
    return torch.where(rows > _NOTHING, (offsets / rows).clamp(0.0, 1.0), math.nan)


def _entropy(total: Float[Tensor, "head offset"]) -> PerHead:
    terms: Tensor = torch.special.entr(_shares(total))
    return terms.sum(1)


def _shares(total: Float[Tensor, "head offset"]) -> Float[Tensor, "head offset"]:
    return total / total.sum(1, keepdim=True)


def _at_offset(total: Float[Tensor, "head offset"], index: int) -> PerHead:
    """The attention at one offset; 0 where there is none in so short a sequence."""
    return total[:, index] if 0 <= index < total.shape[1] else torch.zeros_like(total[:, 0])


def _safe(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, 1.0)


def _count(rows: Bool[Tensor, "_ query"], shape: Shape) -> int:
    return int(rows.expand(shape.batch, shape.queries).sum())
