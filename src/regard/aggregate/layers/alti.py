"""ALTI: how much of each position is in what an attention block gives, layer by layer.

Position j adds a vector Tᵢ(xⱼ) to the output yᵢ of the block, residual stream and layer norm
included. It counts by how much nearer it brings the sum to yᵢ: c = max(0, ‖yᵢ‖₁ − ‖yᵢ − Tᵢ(xⱼ)‖₁).
Rows are divided by their sums, and the layers multiply (Ferrando, Gállego and Costa-jussà, 2022).

>>> import torch, regard
>>> from regard.aggregate import ResidualStream
>>> model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
>>> with torch.no_grad(), ResidualStream(model) as around:
...     with regard.capture(model, values=True) as trace:
...         out = model(torch.randn(1, 5, 8))
>>> regard.alti(trace, around, token=0).sum(-1)
tensor([1.])
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.aggregate.layers.contributions import (
    Matrix,
    check_layers,
    contributions,
    evened,
    over_layers,
    records_of,
)
from regard.aggregate.sources import stack_of
from regard.anatomy.residual_stream import Source, Surroundings, surroundings_of
from regard.record import Record


@torch.no_grad()
def alti(
    attention: Any,
    around: Source,
    token: int | Sequence[int] | None = None,
    *,
    layers: str = "product",
    part: str | None = None,
) -> Tensor:
    """How much each input position contributes to `token`, through all layers.

    Needs the residual stream, so the model runs inside a capture and a `ResidualStream`. Vectors
    (query, key, width) are made for a few queries at a time. One token costs, in each layer, the
    queries that reach it: all of them below the last one. What the feed-forward parts do between
    the attentions stays within each position, and is left out.

    Args:
        attention: a Trace captured with `values=True`, or some of its records.
        around: a `ResidualStream` of the same pass, or {name: Surroundings} with residual streams.
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
    near = surroundings_of(around, records, stream=True)
    return over_layers([partial(_Nearness, *one) for one in zip(records, near)], token, layers)


class _Nearness(Matrix):
    """max(0, ‖yᵢ‖₁ − ‖yᵢ − Tᵢ(xⱼ)‖₁), every row divided by its sum."""

    def __init__(self, record: Record, near: Surroundings) -> None:
        self.found = contributions(record, near)
        self.recipe, self.at_once = self.found.recipe, self.found.rows_at_once

    def rows(self, where: slice) -> Float[Tensor, "batch row key"]:
        batch, _, _, keys = self.recipe.shape
        output = self.found.output[:, None, where]  # (batch, 1, row, width)
        size = output.abs().sum(-1)
        near = output.new_zeros(batch, where.stop - where.start, keys)
        for tile in self.found.tiles(where):
            nearer = size - tile.vectors.sub_(output).abs_().sum(-1)
            near[:, :, tile.keys] = torch.where(tile.taken, nearer.clamp_min_(0.0), 0.0).mT
        return evened(near, where)
