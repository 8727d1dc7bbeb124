"""Attention rollout: how much of each input position reaches a position of the last layer.

Each layer passes on a share of the residual stream and a share of what it attended to,
Ã = s·I + (1 − s)·A, and the layers multiply: R = Ã_L … Ã_1 (Abnar and Zuidema, 2020).

>>> import torch, regard
>>> low = torch.tensor([[0.8, 0.2], [0.4, 0.6]])[None, None]
>>> high = torch.tensor([[0.5, 0.5], [0.1, 0.9]])[None, None]
>>> regard.rollout([low, high])
tensor([[[0.7250, 0.2750],
         [0.2350, 0.7650]]])
>>> regard.rollout([low, high], token=0)
tensor([[0.7250, 0.2750]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate.combine_heads import (
    Fusion,
    check_weighting,
    combine_linear,
    fused_map,
    is_linear,
    weighting,
)
from regard.aggregate.layers import chain
from regard.aggregate.sources import (
    Layer,
    check_shares,
    outside_graph_and_autocast,
    single,
    stack_of,
    token_positions,
)
from regard.errors import RegardError
from regard.kernel.reducers import WeightedSum
from regard.kernel.tiles import reduce
from regard.types import Kind


@outside_graph_and_autocast
def rollout(
    attention: Any,
    token: int | Sequence[int] | None = None,
    *,
    residual: float = 0.5,
    heads: Fusion = "mean",
    discard: float = 0.0,
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> Tensor:
    """How much of each input position reaches `token`, through all layers.

    For some tokens this is one pass of vectors over the layers, in tiles. All tokens, heads "max"
    or "min", and `discard` need a map of all pairs for each layer in turn.

    Args:
        attention: a Trace, or a list of tensors (batch, head, query, key), lowest layer first.
        token: position or positions of the last layer; -1 is the last one, None means all.
        residual: share of the residual stream, from 0 to below 1.
        heads: how heads are joined: "mean", "max", "min", a number, or a weighting.
        discard: share of the smallest weights of each row that is set to 0, of those that are not 0
            already; the first position is kept, as it often is a class token.
        part: of an encoder–decoder model, "encoder" or "decoder".
        axes: the order of a tensor's axes, as "layer batch head query key".
        kind: what the rows of tensors are; "partial" ones sum to at most 1.

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all.
        Rows sum to 1.
    """
    if not 0.0 <= residual < 1.0:
        raise RegardError(f"rollout: residual={residual}, expected from 0 to below 1")
    if not 0.0 <= discard < 1.0:
        raise RegardError(f"rollout: discard={discard}, expected from 0 to below 1")
    if heads == "concat":
        raise RegardError("rollout: heads='concat' gives no single map; expected 'mean' or another")
    layers = stack_of(attention, part=part, axes=axes, kind=kind)
    check_weighting(heads, len(layers))
    positions = token_positions(token, layers[0].recipe.shape.queries)
    if positions is None or discard or not is_linear(heads):
        whole = _map(layers, residual, heads, discard)
        rows = whole if positions is None else whole[:, positions]
    else:
        rows = chain.start(positions, layers[-1].recipe)
        for number, layer in reversed(list(enumerate(layers))):
            rows = rows.to(layer.recipe.device, layer.recipe.dtype)
            rows = residual * rows + (1 - residual) * _passed(rows, layer, heads, number)
    return rows[:, 0] if single(token) else rows


def _passed(rows: Tensor, layer: Layer, heads: Fusion, number: int) -> Tensor:
    """r · A over the heads, rows of A divided by their sums; an empty row keeps its position."""
    recipe = layer.recipe
    check_shares(layer)
    passed = combine_linear(chain.received(rows, recipe), heads, number)
    full = weighting(heads, recipe.shape.heads, number).sum() if isinstance(heads, Tensor) else 1.0
    slack = 1e-5 if recipe.dtype == torch.float32 else 1e-11
    expected = full * rows.sum(-1)
    if recipe.kind == "distribution" and bool(((passed.sum(-1) - expected).abs() <= slack).all()):
        return passed / full
    ones = torch.ones(recipe.shape.keys, dtype=recipe.dtype, device=recipe.device)
    sums = combine_linear(reduce(recipe, [WeightedSum(ones)])[0], heads, number)[
        :, None
    ]  # (batch, 1, query)
    return chain.passed_on(
        rows, sums, lambda scaled: combine_linear(chain.received(scaled, recipe), heads, number)
    )


def _map(layers: list[Layer], residual: float, heads: Fusion, discard: float) -> Tensor:
    whole: Tensor | None = None
    for number, layer in enumerate(layers):
        mixed = mixed_map(layer, residual, heads, number, discard)
        whole = mixed if whole is None else mixed @ whole.to(mixed)
    assert whole is not None
    return whole


def mixed_map(
    layer: Layer, residual: float, heads: Fusion, number: int, discard: float = 0.0
) -> Tensor:
    """Ã of one layer, (batch, query, key): rows sum to 1; an empty row keeps its position."""
    check_shares(layer)
    fused = _discarded(fused_map(layer.recipe, heads, number), discard)
    mixed = chain.summing_to_one(fused).mul_(1 - residual)
    mixed.diagonal(dim1=1, dim2=2).add_(residual)
    return mixed


def _discarded(fused: Tensor, share: float) -> Tensor:
    """Each row without its smallest weights; padding and the future do not count among them."""
    if not share:
        return fused
    count = (fused > 0).sum(-1, keepdim=True).mul(share).long()
    ranked = fused.masked_fill(fused <= 0, torch.inf).sort(-1).values
    border = ranked.gather(-1, count.clamp_max(fused.shape[-1] - 1))
    cut = fused.masked_fill(fused < border, 0.0)
    cut[..., 0] = fused[..., 0]
    return cut
