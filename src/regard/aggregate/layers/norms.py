"""Norm-based attention: not where a layer looks, but how long the vectors are that it adds.

A key adds αᵢⱼ f(xⱼ) to a query, with f(xⱼ) = Σₕ vⱼʰ Wʰ: its values through the output projection. A
large weight on a short vector takes little (Kobayashi et al., 2020). With the residual stream and
the layer norm the vectors are what the whole attention block mixes (Kobayashi et al., 2021).

>>> import torch, regard
>>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
>>> with torch.no_grad(), regard.capture(model, values=True) as trace:
...     out = model(torch.randn(1, 5, 8))
>>> regard.norm_attention(trace, model, token=0).shape
torch.Size([1, 5])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.layers import chain
from regard.aggregate.layers.contributions import (
    BLOCK,
    Include,
    Matrix,
    contributions,
    over_layers,
    records_of,
)
from regard.aggregate.sources import check_layers, layers_of, stack_of
from regard.anatomy.residual_search import values_of
from regard.anatomy.residual_stream import ResidualSource, Surroundings, surroundings_of
from regard.errors import RegardError
from regard.kernel.reducers import WeightedSum
from regard.kernel.tiles import reduce
from regard.record import Record
from regard.types import pieces

_HEADS = ("sum", "joint", "each")
_LAYERS = ("mean", "last", "each", "product")


@torch.no_grad()
def norm_attention(
    attention: Any,
    residual: ResidualSource,
    token: int | Sequence[int] | None = None,
    *,
    heads: str = "sum",
    include: Include = "attention",
    layers: str = "mean",
    part: str | None = None,
) -> Tensor:
    """How long the vectors are that each token takes from each position.

    Args:
        attention: a Trace captured with `values=True`, or some of its records.
        residual: the model, in which the output projections are found; a `ResidualStream` of it
            where `include` needs the residual stream; or {name: Surroundings}.
        token: the query or queries; all of them when None.
        heads: "sum" of the heads' norms, Σₕ αʰ‖fʰ(x)‖; "joint", the norm of the heads' vectors
            together, ‖Σₕ αʰ fʰ(x)‖, in which heads may cancel; "each" for (batch, head, …).
        include: what the vectors are of: the "attention" alone; with the "residual" stream, which
            a position adds to itself; with the layer "norm" that follows, too. The last two are
            for heads="joint", since the stream belongs to no head.
        layers: "mean" over the layers, "last", "each" for (layer, batch, …), or "product": every
            row divided by its sum, and the layers multiplied as in a rollout.
        part: of an encoder–decoder model, "encoder", "decoder" or "cross".

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all.
    """
    _check(heads, include, layers)
    alone = include == "attention"
    follows = layers == "product" or not alone
    stack = stack_of(attention, part=part) if follows else layers_of(attention, part=part)
    records = records_of(stack[-1:] if layers == "last" else stack)
    all_surroundings = surroundings_of(residual, records, stream=not alone)
    makers = [
        partial(_Joint, record, surroundings, include)
        if heads == "joint"
        else partial(_ByHead, record, surroundings, heads)
        for record, surroundings in zip(records, all_surroundings)
    ]
    return over_layers(makers, token, layers)


def _check(heads: str, include: str, layers: str) -> None:
    check_layers("norm_attention", layers, _LAYERS)
    if heads not in _HEADS:
        raise RegardError(f"norm_attention: heads={heads!r}, expected one of {', '.join(_HEADS)}")
    if include not in get_args(Include):
        among = ", ".join(get_args(Include))
        raise RegardError(f"norm_attention: include={include!r}, expected one of {among}")
    if include != "attention" and heads != "joint":
        raise RegardError(
            f"norm_attention: include={include!r} with heads={heads!r}; the residual stream "
            "belongs to no head, so heads='joint' is needed"
        )
    if heads == "each" and layers == "product":
        raise RegardError("norm_attention: heads='each' gives no single matrix to multiply")


class _Joint(Matrix):
    """‖Tᵢ(xⱼ)‖."""

    def __init__(self, record: Record, surroundings: Surroundings, include: Include) -> None:
        self.contributions = contributions(record, surroundings, include)
        self.recipe, self.at_once = self.contributions.recipe, self.contributions.rows_at_once

    def rows(self, queries: slice) -> Float[Tensor, "batch row key"]:
        batch, _, _, keys = self.recipe.shape
        lengths = self.contributions.output.new_zeros(batch, queries.stop - queries.start, keys)
        for tile in self.contributions.tiles(queries):
            lengths[:, :, tile.keys] = tile.vectors.square_().sum(-1).sqrt_().mT
        return lengths


class _ByHead(Matrix):
    """αᵢⱼʰ ‖fʰ(xⱼ)‖, over the heads or each."""

    def __init__(self, record: Record, surroundings: Surroundings, heads: str) -> None:
        self.recipe, self.heads = record.recipe.detach().plain(), heads
        self.lengths = vector_lengths(values_of(self.recipe), surroundings)[:, :, None]
        batch, count, _, keys = self.recipe.shape
        self.at_once = max(1, BLOCK // max(1, batch * count * keys))

    def rows(self, queries: slice) -> Float[Tensor, "batch *head row key"]:
        each = self.recipe.weights(queries) * self.lengths
        return each if self.heads == "each" else each.sum(1)

    def passed(
        self, vectors: Float[Tensor, "batch vector query"]
    ) -> Float[Tensor, "batch vector query"]:
        """The same in tiles, twice: once for the sums of the rows, once for the vectors."""
        if int(vectors.ne(0).flatten(0, 1).any(0).sum()) <= self.at_once:
            return super().passed(vectors)
        sums = reduce(self.recipe, [WeightedSum(self.lengths)])[0].sum(1)  # (batch, 1, query)
        return chain.passed_on(
            vectors, sums, lambda rows: (chain.received(rows, self.recipe) * self.lengths).sum(1)
        )


def vector_lengths(
    values: Float[Tensor, "batch head key value_width"], surroundings: Surroundings
) -> Float[Tensor, "batch head key"]:
    """‖vⱼʰ Wʰ‖ of every key and head, some keys at a time."""
    batch, heads, keys, _ = values.shape
    weight = surroundings.output_weight.to(values).unflatten(
        1, (heads, -1)
    )  # (width, head, value width)
    lengths = values.new_zeros(batch, heads, keys)
    at_once = max(1, BLOCK // max(1, batch * heads * weight.shape[0]))
    for columns in pieces(keys, at_once):
        vectors = torch.einsum("bhkv,ohv->bhko", values[:, :, columns], weight)
        lengths[:, :, columns] = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths
