"""The plain mean of attention over heads, of each layer or over the layers.

>>> import torch, regard
>>> regard.mean_attention([torch.eye(3).expand(1, 2, 3, 3)] * 4, token=1)
tensor([[0., 1., 0.]])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate.combine_heads import Fusion, combine_linear, fused_map, is_linear
from regard.aggregate.layers import chain
from regard.aggregate.sources import (
    Layer,
    check_layers,
    layers_of,
    one_size,
    outside_graph_and_autocast,
    single,
    token_positions,
)
from regard.errors import ShapeError
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
    """What each token attends to, over heads, in the mean over the layers.

    It says where each layer looks, not what reaches the output: layers are not chained.

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
    check_layers("mean_attention", layers)
    stack = layers_of(attention, part=part, axes=axes, kind=kind)
    chosen = list(enumerate(stack))[-1:] if layers == "last" else list(enumerate(stack))

    def maps() -> Iterator[tuple[Layer, Tensor]]:
        for number, layer in chosen:
            positions = token_positions(token, layer.recipe.shape.queries)
            if positions is not None and is_linear(heads):
                rows = chain.start(positions, layer.recipe)
                weights = combine_linear(chain.received(rows, layer.recipe), heads, number)
            else:
                weights = fused_map(layer.recipe, heads, number)
                weights = weights if positions is None else weights[:, positions]
            yield layer, weights[:, 0] if single(token) else weights

    return mean_or_stack(maps(), stack, each=layers == "each")


def mean_or_stack(
    maps: Iterable[tuple[Layer, Tensor]], stack: Sequence[Layer], each: bool
) -> Tensor:
    """The mean of layers' maps, or all of them stacked; they must have one shape."""
    first, results, count = "", list[Tensor](), 0
    for layer, weights in maps:
        if results and results[0].shape != weights.shape:
            raise ShapeError(
                f"{layer.name}: {tuple(weights.shape)}, expected {tuple(results[0].shape)} as in "
                f"{first}; layers of different sizes have no mean and no stack: {one_size(stack)}"
            )
        if not results:
            first, results = layer.name, [weights]
        elif each:
            results.append(weights.to(results[0]))
        else:
            results[0] = results[0] + weights.to(results[0])
        count += 1
    return torch.stack(results) if each else results[0] / count
