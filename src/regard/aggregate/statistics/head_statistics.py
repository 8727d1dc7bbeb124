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

from regard.aggregate.sources import NO_TYPE, Layer, check_shares, layers_of
from regard.aggregate.statistics.head_sums import RATIOS, SINK, Questions, RowSums
from regard.aggregate.statistics.token_positions import positions_of
from regard.errors import RegardError, ShapeError
from regard.kernel.reduce import reduce
from regard.kernel.reducers.base import Reducer
from regard.recipe import Edges, Recipe
from regard.types import Kind, Shape

_FEWEST = 1e-9  # of all rows, beyond which there are some that a figure can be a mean over
_NOTHING = 0.01  # nats from even attention below which there is nothing to explain

PerHead = Float[Tensor, " head"]
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
    questions = Questions(positions, ordered=not (cross or graph))
    asked = questions.reducers
    answers = (walk or reduce)(recipe, list(asked.values()))
    rows = RowSums(recipe, questions, dict(zip(asked, answers)))
    sums = _of_batch(rows.sums(window) | {"aside": rows.aside()})
    figures = figures_of(sums)
    if graph:
        figures["sink"] = figures["sink"] * math.nan
    rest = None
    if bool((figures["aside"] >= SINK).any()):
        kept = RowSums.of_kept(rows, ~rows.sinks())
        rest = figures_of(_of_batch(kept.sums(window)))
    copies = questions.scores["induction"].found(rows.shape.queries) if questions.scores else None
    return HeadStatistics(
        name=layer.name,
        received=rows.received,
        offsets=_shares(sums["offsets"]) if questions.ordered else None,
        queries=_count(positions.rows, rows.shape),
        repeats=0 if copies is None else _count(positions.rows & copies, rows.shape),
        rest=rest,
        **figures,
    )


def figures_of(
    sums: Mapping[str, Float[Tensor, "*_"]], widths: Float[Tensor, " offset"] | None = None
) -> dict[str, Float[Tensor, "*_"]]:
    """Figures by name from sums of `RowSums.sums`, whose leading axes they keep; NaN of none.

    Args:
        sums: by name; those that were added up over examples are of all of them.
        widths: how many offsets each place of `offsets` stands for; one when None.
    """
    nothing = torch.full_like(sums["rows"], math.nan)
    figures = dict.fromkeys(FIGURES, nothing)
    for name, number in RATIOS.items():
        if name in sums:
            enough = sums[number] > _FEWEST * sums["rows"]
            figures[name] = torch.where(enough, sums[name] / sums[number], math.nan)
    even = sums["even"] / sums["rows"]
    figures["evenness"] = torch.where(even > 0, figures["entropy"] / even, math.nan)
    if "offsets" in sums:
        square = sums["squared_distance"] / sums["mass"]
        figures["spread"] = (square - figures["distance"].square()).clamp_min(0.0).sqrt()
        narrower = _entropy(sums["even_offsets"], widths) - _entropy(sums["offsets"], widths)
        rows = even - figures["entropy"]
        share = (narrower / rows).clamp(0.0, 1.0)
        figures["positional"] = torch.where(rows > _NOTHING, share, math.nan)
    return figures


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


def _of_batch(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: total.sum(0) for name, total in sums.items()}


def _entropy(
    total: Float[Tensor, "*_ offset"], widths: Float[Tensor, " offset"] | None
) -> Float[Tensor, "*_"]:
    """Of shares by offset; what lies in one place is spread evenly over the offsets there."""
    shares = _shares(total)
    terms: Tensor = torch.special.entr(shares)
    return (terms if widths is None else terms + shares * widths.clamp_min(1.0).log()).sum(-1)


def _shares(total: Float[Tensor, "*_ offset"]) -> Float[Tensor, "*_ offset"]:
    return total / total.sum(-1, keepdim=True)


def _count(rows: Bool[Tensor, "_ query"], shape: Shape) -> int:
    return int(rows.expand(shape.batch, shape.queries).sum())
