"""Sums over the rows of an attention, by example and head, whose ratios are the figures of heads.

Sums add up, over the examples of a batch and over the batches of a corpus; figures do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from regard.aggregate.statistics.token_positions import Positions
from regard.kernel.reducers import Entropy, Offsets, ReceivedAttention, Repeats, WeightedSum
from regard.kernel.reducers.base import Matrix, Reducer, Sum
from regard.recipe import Edges, Recipe

SINK = 0.4  #: share of a head's attention from which what receives it is a sink

_ENTRIES = 1 << 20  # weights on hidden keys that are taken out at a time
_ROUNDINGS = 16  # of a sum: what is left within them, once keys are taken out, is nothing

PerHead = Float[Tensor, "batch head"]
PerQuery = Float[Tensor, "batch head query"]
PerKey = Float[Tensor, "batch head key"]
Keys = Bool[Tensor, "batch head key"]

#: Figures that are the ratio of two sums: their own, and that of what they are a mean over.
RATIOS = {
    "entropy": "rows",
    "effective": "rows",
    "sink": "rows",
    "special": "rows",
    "aside": "rows",
    "itself": "rows",
    "local": "rows",
    "previous": "rows_after_another",
    "next": "rows_before_another",
    "induction": "rows_with_a_follower",
    "duplicate": "rows_with_a_copy",
    "peak": "examples",
    "distance": "mass",
}


class Questions:
    """What is asked of an attention, in one walk over its tiles."""

    def __init__(self, positions: Positions, ordered: bool) -> None:
        self.positions = positions
        self.ordered = ordered  #: whether a key can be before or after a query
        vectors = [torch.ones_like(positions.keys), positions.is_first]
        vectors += [] if positions.special is None else [positions.special]
        #: (batch or 1, vector, key): 1 for every key, for the first one, for special ones
        self.vectors = torch.stack(torch.broadcast_tensors(*vectors), 1)
        self.scores: dict[str, Repeats] = {}
        if ordered and positions.tokens is not None:
            for after, name in enumerate(("duplicate", "induction")):
                self.scores[name] = Repeats(positions.tokens, after, positions.ordinary)
        self.reducers: dict[str, Reducer] = {
            "entropy": Entropy(),
            "squares": _Squares(),
            "sums": WeightedSum(self.vectors[:, None].float()),
            "received": ReceivedAttention(positions.rows[:, None, None].float()),
            **self.scores,
        }
        if ordered:
            self.reducers["offsets"] = Offsets(positions.rows, positions.keys)


class RowSums:
    """The answers about one attention, in float64, and sums of them over its rows.

    With `kept`, the answers are of the weights on these keys alone, and a row counts as much as the
    weight that it has there, so that means are shares of what is kept.
    """

    def __init__(
        self,
        recipe: Recipe,
        questions: Questions,
        answers: Mapping[str, Tensor],
        kept: Keys | None = None,
    ) -> None:
        self.recipe, self.shape, self.positions = recipe, recipe.shape, questions.positions
        self.questions, self.ordered, self.kept = questions, questions.ordered, kept
        self.answers = {name: answer.cpu().double() for name, answer in answers.items()}
        self.mass = self.answers["sums"][:, :, 0]  # (batch, head, query)
        self.counted = self.positions.rows[:, None] & (self.mass > 0)
        self.row_weights = self.counted.double() if kept is None else self.counted * self.mass

    @classmethod
    def of_kept(cls, whole: RowSums, keys: Keys) -> RowSums:
        """The same of the weights on some keys: those on the others, which are few, are taken out
        of the answers again."""
        answers = {name: answer.clone() for name, answer in whole.answers.items()}
        answers["received"] *= keys[:, :, None]
        recipe = whole.recipe.detach().plain()
        for hidden, column in whole.columns(~keys):
            with torch.no_grad():
                weights = recipe.weights_at(column.to(recipe.device)).cpu().double()
            whole._take_out(answers, column, weights * hidden[:, :, None])
        rounding = _ROUNDINGS * torch.finfo(recipe.dtype).eps
        for name, answer in answers.items():
            largest = whole.answers[name].amax(-1, keepdim=True)
            answer.masked_fill_(answer <= rounding * largest, 0.0)
        evenly = answers["sums"][:, :, 0].square() / whole.shape.keys  # the least squares can be
        answers["squares"] = answers["squares"].maximum(evenly)
        rest = cls(whole.recipe, whole.questions, answers, keys)
        if whole.ordered:
            rest.looks_ahead = whole.looks_ahead
        return rest

    def columns(self, keys: Keys) -> Iterator[tuple[Bool[Tensor, "batch head column"], Tensor]]:
        """Some keys of each matrix as columns, a few at a time: their numbers, (batch, head,
        column), and whether they are any, as matrices may have fewer than others."""
        batch, heads, queries, _ = self.shape
        most = int(keys.sum(2).max())
        if not most:
            return
        chosen, numbers = keys.expand(batch, heads, -1).byte().topk(most, dim=2)
        size = max(1, _ENTRIES // (batch * heads * queries))
        yield from zip(chosen.bool().split(size, 2), numbers.split(size, 2))

    def _take_out(
        self,
        answers: Mapping[str, Tensor],
        column: Int[Tensor, "batch head column"],
        weights: Float[Tensor, "batch head query column"],
    ) -> None:
        """Take the weights on some keys out of the answers."""
        batch, heads, queries, keys = self.shape
        vectors = self.questions.vectors.double()[:, None].expand(batch, heads, -1, keys)
        index = column[:, :, None].expand(-1, -1, vectors.shape[2], -1)
        answers["sums"].sub_(vectors.gather(3, index) @ weights.mT)
        answers["entropy"].sub_(torch.special.entr(weights).sum(3))
        answers["squares"].sub_(weights.square().sum(3))
        for name, score in self.questions.scores.items():
            answers[name].sub_((score.counts(column, queries) * weights).sum(3))
        if self.ordered:
            real = self.positions.keys[:, None].expand(batch, heads, keys).gather(2, column)
            counted = self.positions.rows[:, None, :, None] & real[:, :, None]
            self.add_at_offsets(answers["offsets"], column, -weights * counted)

    def add_at_offsets(
        self,
        total: Float[Tensor, "batch head offset"],
        column: Int[Tensor, "batch head column"],
        values: Float[Tensor, "batch head query column"],
    ) -> None:
        """Add values of pairs to the sums at their offsets j − i, in place."""
        _, _, queries, keys = self.shape
        own = torch.arange(queries)[:, None] + keys - queries
        index = column[:, :, None] - own + keys - 1
        total.scatter_add_(2, index.flatten(2), values.flatten(2))

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether any weight is on a key after its query."""
        return bool(self.answers["offsets"][..., self.shape.keys :].any())

    @cached_property
    def entropy(self) -> PerQuery:
        """Of each row divided by its sum."""
        return self.answers["entropy"] / _safe(self.mass) + _safe(self.mass).log()

    @cached_property
    def effective(self) -> PerQuery:
        """Number of keys that each row rests on, 1 / Σⱼ Aᵢⱼ² of the row divided by its sum."""
        return self.mass.square() / _safe(self.answers["squares"])

    @cached_property
    def received(self) -> PerKey:
        """Mean weight that each key receives; NaN without rows."""
        return self.answers["received"][:, :, 0] / self.row_weights.sum(2, keepdim=True)

    def sinks(self) -> Keys:
        """Special tokens, and keys that receive that much of a head's attention."""
        special = self.positions.special
        keys = self.received >= SINK  # no comparison holds for NaN
        return keys if special is None else keys | special[:, None]

    def aside(self) -> PerHead:
        """The weight on sinks."""
        return (self.answers["received"][:, :, 0] * self.sinks()).sum(2)

    def sums(self, window: int) -> dict[str, Float[Tensor, "batch head *offset"]]:
        """By name, (batch, head): those of `RATIOS`, and `even`, the entropy of even attention to
        all keys in sight; in a sequence also `squared_distance` and, with an axis of offsets from
        1 − keys on, `offsets` and `even_offsets`, what even attention would put at each."""
        answers, sight = self.answers, _Sight(self)
        largest = self.received.amax(2)
        sums = {
            "rows": self.number(),
            "examples": (~largest.isnan()).double(),
            "entropy": self._weighed(self.entropy),
            "even": self._weighed(sight.number.log().expand_as(self.entropy)),
            "effective": self._weighed(self.effective),
            "sink": self._total(answers["sums"][:, :, 1]),
            "peak": largest.nan_to_num(0.0),
        }
        if self.positions.special is not None:
            sums["special"] = self._total(answers["sums"][:, :, 2])
        if self.ordered:
            sums |= self._by_position(window) | {"even_offsets": sight.offsets()}
        for name, score in self.questions.scores.items():
            copied = score.found(self.shape.queries)
            sums[name] = self._total(answers[name], copied)
            sums[RATIOS[name]] = self.number(copied)
        return sums

    def number(self, where: Bool[Tensor, "*_ query"] | None = None) -> PerHead:
        """How many rows count, of those in `where`, (query,) or more axes before it."""
        return self._chosen(self.row_weights, where).sum(2)

    def _total(self, values: PerQuery, where: Bool[Tensor, "*_ query"] | None = None) -> PerHead:
        """Of sums of weights, over the rows that count, of those in `where`."""
        return self._chosen(values, where).sum(2)

    def _weighed(self, values: PerQuery) -> PerHead:
        """Of what does not grow with the weights, over the rows that count."""
        return (self._chosen(values, None) * self.row_weights).sum(2)

    def _chosen(self, values: PerQuery, where: Bool[Tensor, "*_ query"] | None) -> PerQuery:
        if where is not None and where.dim() == 2:
            where = where[:, None]
        rows = self.counted if where is None else self.counted & where
        return torch.where(rows, values, 0.0)

    def _by_position(self, window: int) -> dict[str, Float[Tensor, "batch head *offset"]]:
        """Sums that follow from the attention at each offset j − i."""
        _, _, queries, keys = self.shape
        total = self.answers["offsets"]  # (batch, head, offset)
        zero = keys - 1  # index of offset 0
        distance = (torch.arange(total.shape[2]) - zero).double().abs()
        padded = F.pad(self.in_sight, (1, 1))[..., keys - queries :]  # from before the first query
        return {
            "offsets": total,
            "mass": total.sum(2),
            "distance": total @ distance,
            "squared_distance": total @ distance.square(),
            "itself": total[..., zero],
            "previous": _at_offset(total, zero - 1),
            "rows_after_another": self.number(padded[..., :queries]),
            "next": _at_offset(total, zero + 1),
            "rows_before_another": self.number(padded[..., 2:]),
            "local": total[..., distance <= window].sum(2),
        }

    @property
    def in_sight(self) -> Bool[Tensor, "batch_or_1 head_or_1 key"]:
        """Keys that are real, and kept."""
        real = self.positions.keys[:, None]
        return real if self.kept is None else real & self.kept


class _Sight:
    """The keys each query could see: the real ones, up to itself where no head looks ahead; in a
    graph those it has an edge to. Keys that are not kept are none of them."""

    def __init__(self, rows: RowSums) -> None:
        _, _, queries, keys = rows.shape
        self.rows = rows
        self.own = torch.arange(queries) + (keys - queries)  # the position of each query
        self.first = rows.positions.first[:, None]  # (batch or 1, 1)
        self.last = rows.positions.last[:, None]
        if rows.ordered and not rows.looks_ahead:
            self.last = self.own[None]
        number = (self.last - self.first + 1).expand(-1, queries).double()
        self.number = number[:, None]  # (batch or 1, head or 1, query)
        if isinstance(rows.recipe, Edges) and not rows.ordered:
            self.number = _edges_by_query(rows.recipe)
        if rows.kept is not None:
            self.number = self.number - self._hidden()
        self.number = self.number.clamp_min(1)

    def _hidden(self) -> PerQuery:
        """How many keys in sight of each query are not kept."""
        assert self.rows.kept is not None
        hidden = F.pad((~self.rows.kept).double().cumsum(2), (1, 0))
        batch, heads, queries, _ = self.rows.shape
        first, last = (
            end[:, None].expand(batch, heads, queries) for end in (self.first, self.last + 1)
        )
        return hidden.gather(2, last) - hidden.gather(2, first)

    def offsets(self) -> Float[Tensor, "batch head offset"]:
        """What even attention would put at each offset j − i.

        Each row is a run of equal numbers: +1 where it begins, −1 where it ends, added up. Keys
        that are not kept are taken out again.
        """
        batch, heads, queries, keys = self.rows.shape
        runs = torch.zeros(batch, heads, queries + keys, dtype=torch.float64)
        share = self.rows.row_weights / self.number  # (batch, head, query)
        for sign, end in ((1, self.first - self.own), (-1, self.last + 1 - self.own)):
            index = (end + keys - 1).expand(batch, queries)
            runs.scatter_add_(2, index[:, None].expand_as(share), sign * share)
        offsets = runs.cumsum(2)[..., :-1]
        if self.rows.kept is not None:
            first, last = (end[:, None, :, None] for end in (self.first, self.last))
            for hidden, column in self.rows.columns(~self.rows.kept):
                key = column[:, :, None]
                seen = hidden[:, :, None] & (first <= key) & (key <= last)
                self.rows.add_at_offsets(offsets, column, -share[..., None] * seen)
        return offsets.clamp_min(0.0)


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


def _edges_by_query(recipe: Edges) -> PerQuery:
    """How many edges each query has, absent ones left out."""
    present = (recipe.edge_weights != 0).double()
    numbers = present.new_zeros(recipe.shape[:3])
    return numbers.scatter_add_(2, recipe.query_index.expand(present.shape), present).cpu()


def _at_offset(total: Float[Tensor, "batch head offset"], index: int) -> PerHead:
    """The attention at one offset; 0 where there is none in so short a sequence."""
    return total[..., index] if 0 <= index < total.shape[2] else torch.zeros_like(total[..., 0])


def _safe(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, 1.0)
