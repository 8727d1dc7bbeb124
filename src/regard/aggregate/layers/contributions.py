"""What every key adds to every query, as vectors that sum to what the attention block gives.

    yᵢ = Σⱼ Tᵢ(xⱼ) + restᵢ,    Tᵢ(xⱼ) = κᵢ γ ∘ c(Σₕ αᵢⱼʰ vⱼʰ Wʰ) + [i = j] κᵢ γ ∘ c(xᵢ)

A layer norm divides by a number that depends on its whole input. Taken from the real input of each
position, that number is a constant κᵢ, and what is left of the norm is linear: it subtracts the
mean (c, where it does) and multiplies by γ. So it goes into each vector by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.aggregate.layers import chain
from regard.aggregate.sources import Layer, token_places
from regard.anatomy.residual_search import precise, values_of, what_it_adds
from regard.anatomy.residual_stream import Surroundings
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.kernel.tiles import one_torch_thread
from regard.recipe import Recipe
from regard.record import Record
from regard.types import Features, pieces

#: How much of the block the vectors are of: each word includes those before it.
Include = Literal["attention", "residual", "norm"]
BLOCK = 1 << 22  # weights made at once
_ROWS, _TILE = 64, 1 << 18  # queries of a block; numbers in a tile of vectors, kept in a cache


class Tile(NamedTuple):
    """Vectors Tᵢ(xⱼ) of some queries i and keys j."""

    keys: slice
    vectors: Float[Tensor, "batch key row width"]
    taken: Bool[Tensor, "batch key row"]  #: whether the query takes anything from the key


@dataclass(frozen=True, eq=False)
class Contributions:
    """The vectors Tᵢ(xⱼ) of one attention, made for some queries at a time."""

    recipe: Recipe
    vectors: Float[Tensor, "batch key head width"]  #: what a key adds at weight 1, κ left out
    scale: Float[Tensor, "batch query"]  #: κ
    own: Float[Tensor, "batch query width"] | None  #: what a position adds to itself besides
    rest: Float[Tensor, "one_or_batch one_or_query width"]  #: what belongs to no position
    output: Float[Tensor, "batch query width"]  #: y

    @property
    def rows_at_once(self) -> int:
        """How many queries a block should have, so that their weights are not too many."""
        batch, keys, heads, _ = self.vectors.shape
        return min(_ROWS, max(1, BLOCK // max(1, batch * heads * keys)))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """Vectors of some queries, some keys at a time; without keys that none of them takes in."""
        weights = self.recipe.weights(rows) * self.scale[:, None, rows, None]
        weights = weights.permute(0, 3, 2, 1).contiguous()  # (batch, key, row, head)
        batch, keys, count, _ = weights.shape
        places = torch.arange(rows.start, rows.stop, device=weights.device)
        taken = weights.ne(0).any(3)  # (batch, key, row)
        if self.own is not None:
            taken[:, places, places - rows.start] = True
        size = max(1, batch * count * self.vectors.shape[3])
        for columns in pieces(keys, max(1, _TILE // size)):
            if bool(taken[:, columns].any()):
                vectors = weights[:, columns] @ self.vectors[:, columns]
                if self.own is not None:
                    here = places[(places >= columns.start) & (places < columns.stop)]
                    vectors[:, here - columns.start, here - rows.start] += self.own[:, here]
                yield Tile(columns, vectors, taken[:, columns])


@torch.no_grad()
def contributions(record: Record, near: Surroundings, include: Include = "norm") -> Contributions:
    """The vectors of one attention, captured with its values.

    Args:
        record: an attention.
        near: what stands around it; `residual` is needed unless `include` is "attention".
        include: whether the residual stream is in, and the norm after it.
    """
    recipe = record.recipe.detach().plain()
    added, _ = what_it_adds(recipe, near.output_weight, near.output_bias)
    weight = near.output_weight.to(added).unflatten(1, (recipe.shape.heads, -1))
    vectors = torch.einsum("bhkv,ohv->bkho", values_of(recipe), weight).contiguous()
    rest = added.new_zeros(1, 1, added.shape[2])
    if near.output_bias is not None:
        rest = rest + near.output_bias.to(added)
    scale = added.new_ones(added.shape[:2])
    if include == "attention":
        return Contributions(recipe, vectors, scale, None, rest, added)
    if record.attends == "cross" or recipe.shape.queries != recipe.shape.keys:
        raise UnavailableError(
            f"{record.name}: {record.attends}-attention of {recipe.shape.queries} queries to "
            f"{recipe.shape.keys} keys; the residual stream of a query is not among the keys"
        )
    if near.branch is not None:
        straight = linear_norm(near.branch, added)
        vectors, scale = straight.part(vectors), straight.scale
        rest, added = straight.whole(rest), straight.whole(added)
    assert near.residual is not None
    own = near.residual.to(added).contiguous()  # some models keep it with its axes turned
    output = own + added
    if include == "norm" and near.norm is not None:
        straight = linear_norm(near.norm, output)
        vectors, scale = straight.part(vectors), scale * straight.scale
        own = straight.part(own) * straight.scale[..., None]
        rest, output = straight.whole(rest), straight.whole(output)
    return Contributions(recipe, vectors, scale, own, rest, output)


class LinearNorm(NamedTuple):
    """A norm at given inputs: κᵢ γ ∘ c(x) + β."""

    gain: Float[Tensor, " width"]
    shift: Float[Tensor, " width"]
    scale: Float[Tensor, "batch position"]
    centred: bool

    def part(self, vectors: Float[Tensor, "*some width"]) -> Float[Tensor, "*some width"]:
        """γ ∘ c(x), the part that every vector goes through by itself."""
        if self.centred:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def whole(self, given: Float[Tensor, "_ _ width"]) -> Features:
        """κᵢ γ ∘ c(x) + β."""
        return self.part(given) * self.scale[..., None] + self.shift


def linear_norm(norm: nn.Module, given: Features) -> LinearNorm:
    """A norm as it acts on these inputs, whatever it is called: told by what it gives.

    β is what it makes of 0, γ what it makes of an input of mean 0 (to a factor, which κ takes up),
    c whether a constant added to that changes anything, and κ fits its real answers. If that does
    not give them, it is no norm over the last axis.
    """
    flat = torch.ones(given.shape[-1], dtype=given.dtype, device=given.device)
    flat[1::2] = -1.0
    if len(flat) % 2:
        flat[-1] = 0.0
    turned = flat.roll(1)  # of an odd width, one input leaves one feature out
    made = precise(norm, torch.stack([0 * flat, flat, turned, flat + 1])[None])[0]
    shift = made[0]
    gain = torch.where(flat != 0, flat * (made[1] - shift), turned * (made[2] - shift))
    centred = torch.allclose(made[3], made[1], rtol=1e-3, atol=1e-5)
    answers = precise(norm, given) - shift
    unscaled = LinearNorm(gain, shift, given.new_ones(given.shape[:2]), centred).part(given)
    length = unscaled.square().sum(-1)
    scale = (answers * unscaled).sum(-1) / torch.where(length > 0, length, 1.0)
    apart = (answers - unscaled * scale[..., None]).nan_to_num(nan=0.0).norm()
    if not bool(apart <= 0.01 * answers.nan_to_num(nan=0.0).norm()):
        raise UnavailableError(
            f"{norm} is not a layer norm over the features, and cannot be made linear; give "
            "Surroundings with another one, or None"
        )
    return LinearNorm(gain, shift, scale, centred)


class Matrix(ABC):
    """A (batch, query, key) matrix of one layer, made some rows at a time.

    That is thousands of small steps, at which torch's own threads would wait for each other: they
    are set to one meanwhile.
    """

    recipe: Recipe
    at_once: int  #: how many rows to make together

    @abstractmethod
    def rows(self, where: slice) -> Float[Tensor, "batch *head row key"]:
        """Some rows of it."""

    def picked(self, places: Sequence[int]) -> Float[Tensor, "batch *head place key"]:
        """The rows of these places, in their order."""
        order = sorted(set(places))
        if not order:
            return self.rows(slice(0, 0))
        with one_torch_thread():
            made = torch.cat([self.rows(run) for run in _runs(order, self.at_once)], dim=-2)
        index = torch.tensor([order.index(place) for place in places], device=made.device)
        return made.index_select(-2, index)

    def passed(self, vectors: Float[Tensor, "batch vector query"]) -> Tensor:
        """Vectors times the matrix, its rows divided by their sums; a row of nothing is itself."""
        total = torch.zeros_like(vectors)
        places = vectors.ne(0).flatten(0, 1).any(0).nonzero()[:, 0].tolist()
        with one_torch_thread():
            for run in _runs(places, self.at_once):
                total += vectors[:, :, run] @ evened(self.rows(run), run)
        return total


def evened(rows: Float[Tensor, "batch row key"], where: slice) -> Float[Tensor, "batch row key"]:
    """Rows that sum to 1; a row of nothing keeps to itself."""
    total = rows.sum(-1, keepdim=True)
    some = total > 0
    own = rows.new_zeros(rows.shape[1:])
    own.diagonal(where.start).fill_(1.0)
    return torch.where(some, rows / torch.where(some, total, 1.0), own)


def _runs(places: Sequence[int], most: int) -> Iterator[slice]:
    """Sorted places as slices of neighbours, at most so many in each."""
    start = stop = None
    for place in places:
        if start is None or place != stop or place - start >= most:
            if start is not None:
                yield slice(start, stop)
            start = place
        stop = place + 1
    if start is not None:
        yield slice(start, stop)


def over_layers(
    matrices: Sequence[Callable[[], Matrix]],
    token: int | Sequence[int] | None,
    layers: str,
) -> Tensor:
    """The matrices of all layers, lowest first, as one answer about some tokens.

    Args:
        matrices: what makes each layer's; one at a time is held.
        token: the query or queries; all when None.
        layers: "mean", "last", "each", or "product".
    """
    if layers == "product":
        rows: Tensor | None = None
        for make in reversed(matrices):
            matrix = make()
            if rows is None:
                rows = chain.start(_places(token, matrix), matrix.recipe)
            rows = matrix.passed(rows)
        assert rows is not None
        return rows[:, 0] if isinstance(token, int) else rows
    answers = []
    for make in matrices[-1:] if layers == "last" else matrices:
        matrix = make()
        answer = matrix.picked(_places(token, matrix))
        answers.append(answer[..., 0, :] if isinstance(token, int) else answer)
    if len({answer.shape for answer in answers}) > 1:
        sizes = ", ".join(str(tuple(answer.shape)) for answer in answers)
        raise ShapeError(f"layers={layers!r}: layers of different sizes, {sizes}, do not combine")
    stacked = torch.stack(answers)
    return stacked if layers == "each" else stacked.mean(0)


def _places(token: int | Sequence[int] | None, matrix: Matrix) -> Sequence[int]:
    queries = matrix.recipe.shape.queries
    places = token_places(token, queries)
    return range(queries) if places is None else places


def check_layers(name: str, layers: str, among: Sequence[str]) -> None:
    if layers not in among:
        raise RegardError(f"{name}: layers={layers!r}, expected one of {', '.join(among)}")


def records_of(layers: Sequence[Layer]) -> list[Record]:
    """The records behind layers; tensors have no values."""
    for layer in layers:
        if layer.record is None:
            raise RegardError(
                f"{layer.name}: this needs values, which a Trace has: "
                "regard.capture(model, values=True)"
            )
    return [layer.record for layer in layers if layer.record is not None]
