"""What every key adds to every query, as vectors that sum to the output of the attention block.

    yᵢ = Σⱼ Tᵢ(xⱼ) + restᵢ,    Tᵢ(xⱼ) = κᵢ γ ∘ c(Σₕ αᵢⱼʰ vⱼʰ Wʰ) + [i = j] κᵢ γ ∘ c(xᵢ)

A layer norm divides by a number that depends on its whole input. Taken from the actual input of
each position, that number is a constant κᵢ, and the rest of the norm is linear: it subtracts the
mean (c, if it does) and multiplies by γ. So it applies to each vector separately.
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
from regard.aggregate.sources import Layer, token_positions
from regard.anatomy.residual_search import apply_norm, attention_output, values_of
from regard.anatomy.residual_stream import Surroundings
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.kernel.tile_walk import one_torch_thread
from regard.recipe import Recipe
from regard.record import Record
from regard.types import Features, pieces

#: Which parts of the block the vectors cover: each word includes those before it.
Include = Literal["attention", "residual", "norm"]
BLOCK = 1 << 22  # weights computed at once
_ROWS, _TILE = 64, 1 << 18  # queries of a block; numbers in a tile of vectors, kept in a cache


class Tile(NamedTuple):
    """Vectors Tᵢ(xⱼ) of some queries i and keys j."""

    keys: slice
    vectors: Float[Tensor, "batch key row width"]
    taken: Bool[Tensor, "batch key row"]  #: whether the query takes anything from the key


@dataclass(frozen=True, eq=False)
class Contributions:
    """The vectors Tᵢ(xⱼ) of one attention, computed for some queries at a time."""

    recipe: Recipe
    vectors: Float[Tensor, "batch key head width"]  #: what a key adds at weight 1, κ left out
    scale: Float[Tensor, "batch query"]  #: κ
    own: Float[Tensor, "batch query width"] | None  #: what a position adds to itself besides
    rest: Float[Tensor, "one_or_batch one_or_query width"]  #: what belongs to no position
    output: Float[Tensor, "batch query width"]  #: y

    @property
    def rows_at_once(self) -> int:
        """Queries of a block, so that their weights fit in memory."""
        batch, keys, heads, _ = self.vectors.shape
        return min(_ROWS, max(1, BLOCK // max(1, batch * heads * keys)))

    def tiles(self, rows: slice) -> Iterator[Tile]:
        """Vectors of some queries, some keys at a time; keys without weight are left out."""
        weights = self.recipe.weights(rows) * self.scale[:, None, rows, None]
        weights = weights.permute(0, 3, 2, 1).contiguous()  # (batch, key, row, head)
        batch, keys, count, _ = weights.shape
        queries = torch.arange(rows.start, rows.stop, device=weights.device)
        taken = weights.ne(0).any(3)  # (batch, key, row)
        if self.own is not None:
            taken[:, queries, queries - rows.start] = True
        size = max(1, batch * count * self.vectors.shape[3])
        for columns in pieces(keys, max(1, _TILE // size)):
            if bool(taken[:, columns].any()):
                vectors = weights[:, columns] @ self.vectors[:, columns]
                if self.own is not None:
                    shared = queries[(queries >= columns.start) & (queries < columns.stop)]
                    vectors[:, shared - columns.start, shared - rows.start] += self.own[:, shared]
                yield Tile(columns, vectors, taken[:, columns])


@torch.no_grad()
def contributions(
    record: Record, surroundings: Surroundings, include: Include = "norm"
) -> Contributions:
    """The vectors of one attention, captured with its values.

    Args:
        record: an attention.
        surroundings: of it; `residual` is needed unless `include` is "attention".
        include: whether the residual stream is in, and the norm after it.
    """
    recipe = record.recipe.detach().plain()
    added, _ = attention_output(recipe, surroundings.output_weight, surroundings.output_bias)
    weight = surroundings.output_weight.to(added).unflatten(1, (recipe.shape.heads, -1))
    vectors = torch.einsum("bhkv,ohv->bkho", values_of(recipe), weight).contiguous()
    rest = added.new_zeros(1, 1, added.shape[2])
    if surroundings.output_bias is not None:
        rest = rest + surroundings.output_bias.to(added)
    scale = added.new_ones(added.shape[:2])
    if include == "attention":
        return Contributions(recipe, vectors, scale, None, rest, added)
    if record.attends == "cross" or recipe.shape.queries != recipe.shape.keys:
        raise UnavailableError(
            f"{record.name}: {record.attends}-attention of {recipe.shape.queries} queries to "
            f"{recipe.shape.keys} keys; the residual stream of a query is not among the keys"
        )
    if surroundings.branch is not None:
        norm = linear_norm(surroundings.branch, added)
        vectors, scale = norm.linear(vectors), norm.scale
        rest, added = norm.whole(rest), norm.whole(added)
    assert surroundings.residual is not None
    own = surroundings.residual.to(added).contiguous()  # some models keep it with its axes turned
    output = own + added
    if include == "norm" and surroundings.norm is not None:
        norm = linear_norm(surroundings.norm, output)
        vectors, scale = norm.linear(vectors), scale * norm.scale
        own = norm.linear(own) * norm.scale[..., None]
        rest, output = norm.whole(rest), norm.whole(output)
    return Contributions(recipe, vectors, scale, own, rest, output)


class LinearNorm(NamedTuple):
    """A norm at given inputs: κᵢ γ ∘ c(x) + β."""

    gain: Float[Tensor, " width"]
    shift: Float[Tensor, " width"]
    scale: Float[Tensor, "batch position"]
    centred: bool

    def linear(self, vectors: Float[Tensor, "*some width"]) -> Float[Tensor, "*some width"]:
        """γ ∘ c(x), which applies to every vector separately."""
        if self.centred:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def whole(self, features: Float[Tensor, "_ _ width"]) -> Features:
        """κᵢ γ ∘ c(x) + β."""
        return self.linear(features) * self.scale[..., None] + self.shift


def linear_norm(norm: nn.Module, features: Features) -> LinearNorm:
    """A norm as it acts on these inputs, whatever its class: derived from its outputs.

    β is its output for 0, γ that for an input of mean 0 (up to a factor, which κ absorbs), c
    whether adding a constant changes that, and κ fits its actual outputs. If these cannot be
    reproduced, it is no norm over the last axis.
    """
    flat = torch.ones(features.shape[-1], dtype=features.dtype, device=features.device)
    flat[1::2] = -1.0
    if len(flat) % 2:
        flat[-1] = 0.0
    shifted = flat.roll(1)  # of an odd width, one input leaves one feature out
    outputs = apply_norm(norm, torch.stack([0 * flat, flat, shifted, flat + 1])[None])[0]
    shift = outputs[0]
    gain = torch.where(flat != 0, flat * (outputs[1] - shift), shifted * (outputs[2] - shift))
    centred = torch.allclose(outputs[3], outputs[1], rtol=1e-3, atol=1e-5)
    answers = apply_norm(norm, features) - shift
    unscaled = LinearNorm(gain, shift, features.new_ones(features.shape[:2]), centred).linear(
        features
    )
    length = unscaled.square().sum(-1)
    scale = (answers * unscaled).sum(-1) / torch.where(length > 0, length, 1.0)
    error = (answers - unscaled * scale[..., None]).nan_to_num(nan=0.0).norm()
    if not bool(error <= 0.01 * answers.nan_to_num(nan=0.0).norm()):
        raise UnavailableError(
            f"{norm} is not a layer norm over the features, and cannot be made linear; give "
            "Surroundings with another one, or None"
        )
    return LinearNorm(gain, shift, scale, centred)


class Matrix(ABC):
    """A (batch, query, key) matrix of one layer, computed some rows at a time.

    Thousands of small operations, for which torch's threads would only wait for each other: one
    thread runs them.
    """

    recipe: Recipe
    at_once: int  #: how many rows to compute together

    @abstractmethod
    def rows(self, where: slice) -> Float[Tensor, "batch *head row key"]:
        """Some rows of it."""

    def picked(self, positions: Sequence[int]) -> Float[Tensor, "batch *head place key"]:
        """The rows of these positions, in their order."""
        order = sorted(set(positions))
        if not order:
            return self.rows(slice(0, 0))
        with one_torch_thread():
            rows = torch.cat([self.rows(run) for run in _runs(order, self.at_once)], dim=-2)
        index = torch.tensor([order.index(position) for position in positions], device=rows.device)
        return rows.index_select(-2, index)

    def passed(self, vectors: Float[Tensor, "batch vector query"]) -> Tensor:
        """Vectors times the matrix with rows that sum to 1; an empty row keeps its position."""
        total = torch.zeros_like(vectors)
        positions = vectors.ne(0).flatten(0, 1).any(0).nonzero()[:, 0].tolist()
        with one_torch_thread():
            for run in _runs(positions, self.at_once):
                total += vectors[:, :, run] @ chain.summing_to_one(self.rows(run), run.start)
        return total


def _runs(positions: Sequence[int], most: int) -> Iterator[slice]:
    """Sorted positions as slices of neighbours, each of at most `most`."""
    start = stop = None
    for position in positions:
        if start is None or position != stop or position - start >= most:
            if start is not None:
                yield slice(start, stop)
            start = position
        stop = position + 1
    if start is not None:
        yield slice(start, stop)


def over_layers(
    matrices: Sequence[Callable[[], Matrix]],
    token: int | Sequence[int] | None,
    layers: str,
) -> Tensor:
    """The matrices of all layers, lowest first, as one answer about some tokens.

    Args:
        matrices: builds each layer's; one at a time is held.
        token: the query or queries; all when None.
        layers: "mean", "last", "each", or "product".
    """
    if layers == "product":
        rows: Tensor | None = None
        for build in reversed(matrices):
            matrix = build()
            if rows is None:
                rows = chain.start(_positions(token, matrix), matrix.recipe)
            rows = matrix.passed(rows)
        assert rows is not None
        return rows[:, 0] if isinstance(token, int) else rows
    answers = []
    for build in matrices[-1:] if layers == "last" else matrices:
        matrix = build()
        answer = matrix.picked(_positions(token, matrix))
        answers.append(answer[..., 0, :] if isinstance(token, int) else answer)
    if len({answer.shape for answer in answers}) > 1:
        sizes = ", ".join(str(tuple(answer.shape)) for answer in answers)
        raise ShapeError(f"layers={layers!r}: layers of different sizes, {sizes}, do not combine")
    stacked = torch.stack(answers)
    return stacked if layers == "each" else stacked.mean(0)


def _positions(token: int | Sequence[int] | None, matrix: Matrix) -> Sequence[int]:
    queries = matrix.recipe.shape.queries
    positions = token_positions(token, queries)
    return range(queries) if positions is None else positions


def records_of(layers: Sequence[Layer]) -> list[Record]:
    """The records behind layers; tensors have no values."""
    for layer in layers:
        if layer.record is None:
            raise RegardError(
                f"{layer.name}: this needs values, which a Trace has: "
                "regard.capture(model, values=True)"
            )
    return [layer.record for layer in layers if layer.record is not None]
