"""The plain mean of attention over heads, of each layer or over the layers.

>>> import torch, regard
>>> regard.mean_attention([torch.eye(3).expand(1, 2, 3, 3)] * 4, token=1)
tensor([[0., 1., 0.]])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate.combine_heads import Fusion, fused_map, joined, streams
from regard.aggregate.layers import chain
from regard.aggregate.sources import (
    layers_of,
    one_size,
    outside_graph_and_autocast,
    single,
    token_places,
)
from regard.errors import RegardError, ShapeError
from regard.types import Kind


@outside_graph_and_autocast
def mean_attention(
    attention: Any,
    token: int | Sequence[int] | None = None,
    *,
    heads: Fusion = "mean",
    layers: str = "mean",
    part: str | None = None,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> Tensor:
    """What each token looks at, over heads, in the mean over the layers.

    It says where a layer looks, not what reaches the output: nothing is passed on from layer to
    layer.

    Args:
        attention: a Trace, or a list of tensors (batch, head, query, key), lowest layer first.
        token: the query or queries; all of them when None, a map for each layer in turn.
        heads: how heads are joined: "mean", "max", "min", a number, or a weighting.
        layers: "mean" over the layers, "last", or "each" for (layer, batch, …).
        part: of an encoder–decoder model, "encoder", "decoder" or "cross".
        axes: the order of a tensor's axes, as "layer batch head query key".
        kind: what the rows of tensors are, as for `combine_heads`.

    Returns:
        (batch, key) for one token, (batch, token, key) for several, (batch, query, key) for all.
    """
    if layers not in ("mean", "last", "each"):
        raise RegardError(f"mean_attention: layers={layers!r}, expected mean, last or each")
    found = layers_of(attention, part=part, axes=axes, kind=kind)
    chosen = list(enumerate(found))[-1:] if layers == "last" else list(enumerate(found))
    total: Tensor | None = None
    each: list[Tensor] = []
    for number, layer in chosen:
        places = token_places(token, layer.recipe.shape.queries)
        if places is not None and streams(heads):
            rows = chain.start(places, layer.recipe)
            answer = joined(chain.received(rows, layer.recipe), heads, number)
        else:
            answer = fused_map(layer.recipe, heads, number)
            answer = answer if places is None else answer[:, places]
        answer = answer[:, 0] if single(token) else answer
        before = each[-1] if each else total
        if before is not None and before.shape != answer.shape:
            raise ShapeError(
                f"{layer.name}: {tuple(answer.shape)}, expected {tuple(before.shape)} as in "
                f"{chosen[0][1].name}; layers of different sizes have no mean and no stack: "
                + one_size(found)
            )
        if layers == "each":
            each.append(answer)
        else:
            total = answer if total is None else total.to(answer) + answer
    if layers == "each":
        return torch.stack(each)
    assert total is not None
    return total / len(chosen)
