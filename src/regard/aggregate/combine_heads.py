"""Several heads as one map: the mean, the largest, the smallest, one head, or a weighting.

>>> import torch
>>> from regard import combine_heads
>>> weights = torch.eye(3).expand(1, 2, 3, 3)
>>> combine_heads(weights, "mean").shape
torch.Size([1, 3, 3])
>>> combine_heads(weights, "concat").shape  # the head axis last, nothing averaged
torch.Size([1, 3, 3, 2])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.aggregate.sources import layer_of, layers_of, outside_graph_and_autocast
from regard.errors import RegardError, ShapeError
from regard.kernel.reduce import Reducer
from regard.kernel.reducers import HeadMax, HeadMean, HeadMin
from regard.kernel.tiles import reduce
from regard.recipe import Recipe
from regard.record import Trace
from regard.types import Kind

#: How heads are combined: a word, the number of one head, or weights (head,) or (layer, head).
Fusion = str | int | Tensor
_MAPS: dict[str, Callable[[], Reducer]] = {"mean": HeadMean, "max": HeadMax, "min": HeadMin}


def combine_heads(
    attention: Any,
    heads: Fusion = "mean",
    *,
    axes: str | None = None,
    kind: Kind = "distribution",
) -> Any:
    """One map for each attention, over its heads; streamed, so that only the result is held.

    Args:
        attention: a Trace (the answer is a dictionary by name), a Record, or a tensor.
        heads: "mean", "max", "min", "concat" (nothing is averaged), the number of one head, or a
            weighting (head,), used as it is: importances are divided by their sum beforehand.
        axes: the order of a tensor's axes, as "head batch query key".
        kind: what the rows of a tensor are; "distribution" is checked.

    Returns:
        (batch, query, key), or (batch, query, key, head) of "concat".
    """
    if isinstance(attention, Trace):
        return {
            record.name: fused_map(layer_of(record).recipe, heads, number)
            for number, record in enumerate(attention)
        }
    layers = layers_of(attention, axes=axes, kind=kind)
    if len(layers) > 1:
        raise RegardError(f"combine_heads: {len(layers)} layers, expected one attention or a Trace")
    return fused_map(layers[0].recipe, heads)


def check_weighting(heads: Fusion, layers: int) -> None:
    """Refuse a weighting whose rows have no positive sum."""
    if not isinstance(heads, Tensor):
        return
    if heads.dim() == 2 and heads.shape[0] != layers:
        raise ShapeError(f"heads: a weighting of {heads.shape[0]} layers, expected {layers}")
    for row in heads.detach().reshape(-1, heads.shape[-1]):
        if not bool(row.isfinite().all()) or bool((row < 0).any()) or not bool(row.sum() > 0):
            raise RegardError(
                f"heads: the weighting {row.tolist()} has no positive sum of numbers from 0 up"
            )


@outside_graph_and_autocast
def fused_map(recipe: Recipe, heads: Fusion, layer: int = 0) -> Tensor:
    """The map of one attention."""
    if isinstance(heads, str):
        if heads == "concat":
            return recipe.weights().permute(0, 2, 3, 1)
        if heads not in _MAPS:
            raise RegardError(
                f"heads={heads!r}, expected 'mean', 'max', 'min', 'concat', a number or a weighting"
            )
        if heads == "max" and recipe.kind in ("signed", "gate"):
            return recipe.weights().amax(1)  # such weights have no logarithm
        combined: Tensor = reduce(recipe, [_MAPS[heads]()])[0]
        return combined
    if isinstance(heads, Tensor):
        share = weighting(heads, recipe.shape.heads, layer).to(recipe.device, recipe.dtype)
        total = torch.zeros((), dtype=recipe.dtype, device=recipe.device)
        for head in range(recipe.shape.heads):
            if share[head]:
                total = total + share[head] * head_weights(recipe, head)
        return total.expand(recipe.shape.batch, *recipe.shape[2:])
    return head_weights(recipe, one_head(heads, recipe.shape.heads))


def head_weights(recipe: Recipe, head: int) -> Tensor:
    """The weights of one head, (batch, query, key)."""
    examples = [recipe.at(example, head).weights()[0] for example in range(recipe.shape.batch)]
    return torch.cat(examples)


def combine_linear(results: Tensor, heads: Fusion, layer: int = 0) -> Tensor:
    """Combine results (batch, head, …) that are linear in the weights, over the heads."""
    if isinstance(heads, Tensor):
        share = weighting(heads, results.shape[1], layer).to(results.device, results.dtype)
        return torch.einsum("bh...,h->b...", results, share)
    if isinstance(heads, str):
        if heads != "mean":
            raise RegardError(f"heads={heads!r} needs the whole map")
        return results.mean(1)
    return results[:, one_head(heads, results.shape[1])]


def is_linear(heads: Fusion) -> bool:
    """Whether this way of combining heads is linear, so that vectors can pass through it."""
    return not isinstance(heads, str) or heads == "mean"


def one_head(head: Any, heads: int) -> int:
    """A head by number, from 0 or, below 0, from the last."""
    if not isinstance(head, int) or isinstance(head, bool) or not -heads <= head < heads:
        raise RegardError(f"heads={head!r}, expected a head from 0 to {heads - 1}")
    return head % heads


def weighting(heads: Tensor, count: int, layer: int) -> Tensor:
    """The weights of one layer's heads, (head,)."""
    heads = heads.detach()
    if heads.dim() == 2 and layer >= heads.shape[0]:
        raise ShapeError(f"heads: a weighting of {heads.shape[0]} layers; layer {layer} has none")
    share = heads[layer] if heads.dim() == 2 else heads
    if share.dim() != 1 or share.shape[0] != count:
        raise ShapeError(
            f"heads: a weighting {tuple(heads.shape)}, expected ({count},) or (layer, {count})"
        )
    return share
