"""Operators that attend by themselves, and the recipe each one is.

Arguments are taken by the names of the operator's schema, so one reader serves flash attention
for CPU and CUDA, memory-efficient, cuDNN and the overrideable kernel of other devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.masks.parts import Band, Mask, Padding, Pairs
from regard.recipe import Dot, Flex, Projected, Recipe


@dataclass(frozen=True)
class Reading:
    """What an operator's call says: a recipe, and what it was about."""

    recipe: Recipe
    query: Tensor  # where the queries and keys come from, to tell self from cross
    key: Tensor
    value: Tensor | None = None
    output: Tensor | None = None


Reader = Callable[[dict[str, Any], Any, Callable[[Tensor], Tensor | None]], Reading]
_READERS: dict[str, Reader] = {}


def reader_of(name: str) -> Reader | None:
    """The reader of an operator, by the name of its packet."""
    return _READERS.get(name)


def _for(*names: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(names, reader))
        return reader

    return register


@_for(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def _fused(
    given: dict[str, Any], out: Any, allowed_by: Callable[[Tensor], Tensor | None]
) -> Reading:
    query, key, value = given["query"], given["key"], given["value"]
    added = given.get("attn_mask")
    added = given.get("attn_bias") if added is None else added
    mask: Mask | None = None
    if given.get("is_causal"):  # aligned at the top left; ours at the bottom right
        mask = Band(None, query.shape[2] - key.shape[2])
    if added is not None:
        allowed = added if added.dtype == torch.bool else allowed_by(added)
        added = None if allowed is not None else _four(added)
        if allowed is not None:
            pairs = Pairs(_four(allowed))
            mask = pairs if mask is None else mask & pairs
    scale = given.get("scale")
    recipe = Dot(
        query,
        key,
        mask=mask,
        bias=added,
        scale=query.shape[3] ** -0.5 if scale is None else scale,
        lse=_log_sum_exp(out[1], query, masked=mask is not None or added is not None),
    )
    return Reading(recipe, query, key, value, out[0])


@_for("_native_multi_head_attention")
def _native(
    given: dict[str, Any], out: Any, allowed_by: Callable[[Tensor], Tensor | None]
) -> Reading:
    query, key = given["query"], given["key"]
    return _projected(given, query, None if key is query else key, given["num_head"])


@_for("_transformer_encoder_layer_fwd")
def _encoder_layer(
    given: dict[str, Any], out: Any, allowed_by: Callable[[Tensor], Tensor | None]
) -> Reading:
    norm = {}
    if given["norm_first"]:
        norm = {
            "norm_weight": given["norm_weight_1"],
            "norm_bias": given["norm_bias_1"],
            "epsilon": given["eps"],
        }
    return _projected(given, given["src"], None, given["num_heads"], **norm)


def _projected(
    given: dict[str, Any], query: Tensor, key: Tensor | None, n_heads: int, **norm: Any
) -> Reading:
    mask = _native_mask(given.get("mask"), given.get("mask_type"), n_heads)
    if query.is_nested:
        lengths = torch.tensor([part.shape[0] for part in query.unbind()], device=query.device)
        query = torch.nested.to_padded_tensor(query, 0.0)
        real = torch.arange(query.shape[1], device=query.device) < lengths[:, None]
        rows = Pairs(real[:, None, :, None] & real[:, None, None, :])
        mask = rows if mask is None else mask & rows
        key = None
    recipe = Projected(
        query, given["qkv_weight"], given["qkv_bias"], n_heads, key_input=key, mask=mask, **norm
    )
    return Reading(recipe, query, query if key is None else key)


def _native_mask(mask: Tensor | None, mask_type: int | None, n_heads: int) -> Mask | None:
    """There non-zero means forbidden: 0 is (query, key), 1 (batch, key), 2 the full form."""
    if mask is None:
        return None
    allowed = ~mask.bool()
    if mask_type == 1:
        return Padding(allowed)
    if mask_type == 0 or allowed.dim() == 2:
        return Pairs(allowed[None, None])
    return Pairs(allowed if allowed.dim() == 4 else allowed.unflatten(0, (-1, n_heads)))


@_for("flex_attention")
def _flex(
    given: dict[str, Any], out: Any, allowed_by: Callable[[Tensor], Tensor | None]
) -> Reading:
    query, key, value = given["query"], given["key"], given["value"]
    recipe = Flex(
        query,
        key,
        torch.arange(query.shape[0], device=query.device),
        torch.arange(query.shape[1], device=query.device),
        score_mod=given["score_mod"],
        mask_mod=given["block_mask"][-1],
        scale=given["scale"],
    )
    return Reading(recipe, query, key, value, out[0])


FLEX_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale")


def _four(mask: Tensor) -> Tensor:
    """(query, key) or (batch, query, key) in the full form."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask


def _log_sum_exp(lse: Any, query: Tensor, masked: bool) -> Tensor | None:
    """A kernel's log-sum-exp where it gives one of this size; 0 for a row that sees nothing."""
    if not isinstance(lse, Tensor) or lse.shape != query.shape[:3] or query.is_meta:
        return None
    if not masked:
        return lse
    return torch.nan_to_num(lse, nan=0.0, neginf=0.0, posinf=0.0)
