"""ALTI: how much of each position is in what an attention block gives, layer by layer.

Position j adds a vector Tᵢ(xⱼ) to the output yᵢ of the block, residual stream and layer norm
included. It counts by how much nearer it brings the sum to yᵢ: c = max(0, ‖yᵢ‖₁ − ‖yᵢ − Tᵢ(xⱼ)‖₁).
Rows are divided by their sums, and the layers multiply (Ferrando, Gállego and Costa-jussà, 2022).

>>> import torch, regard
>>> from regard.aggregate import ResidualStream
>>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
>>> with torch.no_grad(), ResidualStream(model) as residual:
...     with regard.capture(model, values=True) as trace:
...         out = model(torch.randn(1, 5, 8))
>>> regard.alti(trace, residual, token=0).sum(-1)
tensor([1.])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.layers import chain
from regard.aggregate.layers.contributions import (
    Matrix,
    contributions,
    over_layers,
    records_of,
)
from regard.aggregate.sources import check_layers, stack_of
from regard.anatomy.residual_stream import ResidualSource, Surroundings, surroundings_of
from regard.record import Record


@torch.no_grad()
def alti(
    attention: Any,
    residual: ResidualSource,
    token: int | Sequence[int] | None = None,
    *,
    layers: str = "product",
    part: str | None = None,
) -> Tensor:
    """How much each input position contributes to `token`, through all layers.

    Needs the residual stream, so run the model inside a capture and a `ResidualStream`. Vectors
    (query, key, width) are computed for a few queries at a time. One token costs, in each layer,
    the queries that reach it: all of them below the last one. Feed-forward layers act within each
    position and are left out.

    Args:
        attention: a Trace captured with `values=True`, or some of its records.
        residual: a `ResidualStream` of the same pass, or {name: Surroundings} with residual
            streams.
        token: position or positions of the last layer; -1 is the last one, None means all.
        layers: "product" of all layers, "last", or "each" for (layer, batch, …).
        part: of an encoder–decoder model, "encoder" or "decoder".

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all.
        Rows sum to 1.
    """
    check_layers("alti", layers, ("product", "last", "each"))
    records = records_of(stack_of(attention, part=part))
    records = records[-1:] if layers == "last" else records
    surroundings = surroundings_of(residual, records, stream=True)
    return over_layers(
        [partial(_Nearness, *site) for site in zip(records, surroundings)], token, layers
    )


class _Nearness(Matrix):
    """max(0, ‖yᵢ‖₁ − ‖yᵢ − Tᵢ(xⱼ)‖₁), every row divided by its sum."""

    def __init__(self, record: Record, surroundings: Surroundings) -> None:
        self.contributions = contributions(record, surroundings)
        self.recipe, self.at_once = self.contributions.recipe, self.contributions.rows_at_once

    def rows(self, queries: slice) -> Float[Tensor, "batch row key"]:
        batch, _, _, keys = self.recipe.shape
        output = self.contributions.output[:, None, queries]  # (batch, 1, row, width)
        size = output.abs().sum(-1)
        nearness = output.new_zeros(batch, queries.stop - queries.start, keys)
        for tile in self.contributions.tiles(queries):
            nearer = size - tile.vectors.sub_(output).abs_().sum(-1)
            nearness[:, :, tile.keys] = torch.where(tile.taken, nearer.clamp_min_(0.0), 0.0).mT
        return chain.summing_to_one(nearness, queries.start)
