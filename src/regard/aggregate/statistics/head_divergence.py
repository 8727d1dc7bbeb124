"""How alike heads are: the Jensen–Shannon divergence between their rows, and groups by it.

>>> import torch
>>> from regard.aggregate.statistics.head_divergence import head_divergence
>>> back, even = torch.eye(8).roll(-1, 1), torch.full((8, 8), 1 / 8)
>>> divergence = head_divergence(torch.stack([back, even, back])[None])
>>> divergence.cluster(0.1)
[[(0, 0), (0, 2)], [(0, 1)]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.aggregate.sources import NO_TYPE, Layer, check_shares, layers_of
from regard.aggregate.statistics.head_statistics import is_cross, layer_numbers
from regard.aggregate.statistics.token_positions import positions_of
from regard.errors import RegardError, ShapeError
from regard.recipe import Recipe
from regard.types import Kind, pieces

_STRIP = 1 << 18  # weights of all heads that are compared at a time; they stay in a core's cache


class Link(NamedTuple):
    """Two groups that become one. Heads are numbered as in `heads`, groups from there on."""

    first: int
    second: int
    divergence: float  #: mean over the pairs of heads of the two
    size: int  #: heads in the new group


@dataclass(frozen=True, eq=False)
class HeadDivergence:
    """Jensen–Shannon divergences between heads, in nats: 0 for equal rows, at most ln 2."""

    heads: list[tuple[int, int]]  #: (layer, head) of each row and column
    matrix: Float[Tensor, "head head"]  #: NaN where two heads were not compared

    def cluster(self, limit: float = 0.1) -> list[list[tuple[int, int]]]:
        """Groups of heads, largest first: the closest two groups join while their heads diverge
        by no more than `limit` in the mean (average linkage)."""
        if not 0.0 <= limit <= math.log(2):
            raise RegardError(f"cluster: limit={limit}, expected from 0 to ln 2 ≈ 0.693")
        groups = {number: [head] for number, head in enumerate(self.heads)}
        for number, link in enumerate(self.links(), len(self.heads)):
            if link.divergence <= limit:
                groups[number] = groups.pop(link.first) + groups.pop(link.second)
        return sorted((sorted(group) for group in groups.values()), key=lambda g: (-len(g), g))

    def links(self) -> list[Link]:
        """All joins, closest first, as a dendrogram draws them; heads never compared stay apart."""
        distance = self.matrix.double().clone()
        distance[distance.isnan()] = math.inf
        distance.fill_diagonal_(math.inf)
        number = list(range(len(self.heads)))  # of the group in each row
        size = [1] * len(self.heads)
        links = []
        for new in range(len(self.heads), 2 * len(self.heads) - 1):
            first, second = divmod(int(distance.argmin()), len(self.heads))
            nearest = float(distance[first, second])
            if nearest == math.inf:
                break
            both = size[first] + size[second]
            links.append(Link(number[first], number[second], nearest, both))
            mean = (size[first] * distance[first] + size[second] * distance[second]) / both
            distance[first], distance[:, first] = mean, mean
            distance[second], distance[:, second] = math.inf, math.inf
            distance[first, first] = math.inf
            number[first], size[first] = new, both
        return links


def head_divergence(
    attention: Any,
    *,
    between_layers: bool = False,
    real: Any = None,
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> HeadDivergence:
    """How far apart the heads of an attention are, two by two, in the mean over queries.

    Streamed in strips of rows. Each pair of heads takes queries × keys logarithms. For a BERT of
    12 layers and 512 tokens that is about as long as its forward pass for the heads of every
    layer, and eight times as long between all layers.

    Args:
        attention: a Trace, a Record, a tensor, or a list of records or tensors.
        between_layers: whether heads of different layers are compared too; these must then have
            the same queries and keys.
        real: which positions are not padding, (position,) or (batch, position).
        part: of the trace of an encoder–decoder model, "encoder", "decoder" or "cross".
        axes: the order of a tensor's axes, as "layer batch head query key".
        kind: what the rows of tensors are.
    """
    layers = layers_of(attention, axes=axes, kind=kind, part=part)
    for layer in layers:
        check_shares(layer, NO_TYPE)
    groups = [layers] if between_layers else [[layer] for layer in layers]
    heads = [
        (number, head)
        for number, layer in zip(layer_numbers(layers)[0], layers)
        for head in range(layer.recipe.shape.heads)
    ]
    matrix = torch.full((len(heads), len(heads)), math.nan, dtype=torch.float64)
    start = 0
    for group in groups:
        divergences = _compare(group, real)
        block = slice(start, start + len(divergences))
        matrix[block, block] = divergences
        start += len(divergences)
    return HeadDivergence(heads, matrix)


def _compare(layers: list[Layer], real: Any) -> Float[Tensor, "head head"]:
    first = layers[0]
    for layer in layers:
        mine, theirs = layer.recipe.shape, first.recipe.shape
        if (mine.batch, *mine[2:]) != (theirs.batch, *theirs[2:]):
            raise ShapeError(
                f"{layer.name}: batch {mine.batch}, {mine.queries} × {mine.keys}, expected batch "
                f"{theirs.batch}, {theirs.queries} × {theirs.keys} as in {first.name}: only heads "
                "over the same queries and keys are compared; leave out between_layers=True"
            )
    kept = positions_of(first, is_cross(first), None, real, None).rows  # (batch or 1, query)
    total, count = divergence_sums([layer.recipe for layer in layers], kept)
    mean = (total.sum(0) / count.sum(0)).clamp_min(0.0)
    return mean.triu(1) + mean.triu(1).T


@torch.no_grad()
def divergence_sums(
    recipes: Sequence[Recipe], kept: Bool[Tensor, "batch_or_1 query"]
) -> tuple[Float[Tensor, "batch head head"], Float[Tensor, "batch head head"]]:
    """Divergences between the heads of recipes over the same positions, summed over the rows of
    each example, and how many rows there were; above the diagonal."""
    recipes = [recipe.detach().plain() for recipe in recipes]
    batch, _, queries, keys = recipes[0].shape
    heads = sum(recipe.shape.heads for recipe in recipes)
    total = torch.zeros(batch, heads, heads, dtype=torch.float64)
    count = torch.zeros_like(total)
    for rows in pieces(queries, max(1, _STRIP // max(1, heads * batch * keys))):
        weights = torch.cat([recipe.weights(rows).transpose(0, 1) for recipe in recipes])
        summed, counted = _strip(weights, kept[:, rows].to(weights.device))
        total, count = total + summed, count + counted
    return total, count


def _strip(
    weights: Float[Tensor, "head batch row key"], real: Bool[Tensor, "batch_or_1 row"]
) -> tuple[Float[Tensor, "batch head head"], Float[Tensor, "batch head head"]]:
    """The same of some rows.

    With c = a + b, JS(a, b) = ½ Σ a log a + ½ Σ b log b − ½ Σ c log c + log 2.
    """
    weights, mass = _shares(weights)
    rows = real & (mass > 0)  # (head, batch, row)
    own = _sum_log(weights)  # (head, batch, row)
    heads, batch = weights.shape[:2]
    total = torch.zeros(batch, heads, heads, dtype=torch.float64)
    count = torch.zeros_like(total)
    for head in range(heads - 1):
        later = slice(head + 1, None)
        joint = _sum_log(weights[later] + weights[head])
        divergence = (own[later] + own[head] - joint) / 2 + math.log(2)
        both = rows[later] & rows[head]
        total[:, head, later] = torch.where(both, divergence, 0.0).sum(2).cpu().double().T
        count[:, head, later] = both.sum(2).cpu().double().T
    return total, count


@torch.no_grad()
def divergence_of(first: Recipe, second: Recipe) -> Float[Tensor, "batch head query"]:
    """Divergence of each row from the same row of another attention over the same positions."""
    strips = []
    batch, heads, queries, keys = first.shape
    pair = [recipe.detach().plain() for recipe in (first, second)]
    for rows in pieces(queries, max(1, _STRIP // max(1, heads * batch * keys))):
        one, other = (_shares(recipe.weights(rows))[0] for recipe in pair)
        strips.append((_sum_log(one) + _sum_log(other) - _sum_log(one + other)) / 2 + math.log(2))
    return torch.cat(strips, 2).clamp_min(0.0)


def _shares(
    weights: Float[Tensor, "*lead row key"],
) -> tuple[Float[Tensor, "*lead row key"], Float[Tensor, "*lead row"]]:
    """Rows divided by their sums, and the sums."""
    mass = weights.sum(-1)
    return weights / torch.where(mass > 0, mass, 1.0)[..., None], mass


def _sum_log(values: Float[Tensor, "*lead row key"]) -> Float[Tensor, "*lead row"]:
    logs = values.clamp_min(torch.finfo(values.dtype).tiny).log_()
    total: Tensor = logs.mul_(values).sum(-1)
    return total
