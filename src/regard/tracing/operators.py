"""Fused attention operators, and the recipe of each.

Arguments are read by the names in the operator's schema, so one reader serves several devices. The
readers of GPU operators were tested with stand-ins of the same schemas, never on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.errors import UnavailableError
from regard.interception.scaled_dot_product import four_axes, scaled_dot_product
from regard.kernel import blockwise, image_windows
from regard.kernel.position_encodings import AlibiBias
from regard.masks.parts import Band, Mask, Padding, Pairs, Segments
from regard.recipe import Dot, Flex, Projected, Recipe


def _on_heads(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Reading:
    """The recipe of a call, with its inputs and output."""

    recipe: Recipe
    query: Tensor  # the sources of queries and keys, to tell self from cross
    key: Tensor
    value: Tensor | None = None
    output: Tensor | None = None
    #: Brings the output into (batch, head, query, width).
    arrange: Callable[[Tensor], Tensor] = _on_heads


Arguments = dict[str, Any]  # by the names of the schema
AllowedBy = Callable[[Tensor], Tensor | None]  # the boolean mask behind an additive one
Reader = Callable[[Arguments, Any, AllowedBy], Reading]
_READERS: dict[str, Reader] = {}


def reader_of(name: str) -> Reader | None:
    """The reader of an operator: of torch's own by its bare name, else by "namespace::name"."""
    return _READERS.get(name)


def _for(*names: str) -> Callable[[Reader], Reader]:
    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(names, reader))
        return reader

    return register


@_for(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def _fused(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    # Causal is aligned at the top left; ours at the bottom right.
    shift = arguments["query"].shape[2] - arguments["key"].shape[2]
    return _scaled(arguments, out[0], out[1], allowed_by, shift)


@_for(blockwise.OPERATOR)
def _blockwise(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    query, key, value, scale = (arguments[name] for name in ("query", "key", "value", "scale"))
    band = (arguments[name] for name in ("left", "right", "first"))
    tensors = (arguments[name] for name in ("query_segments", "key_segments", "keep"))
    mask = blockwise.structure_of(*band, *tensors).mask
    recipe = Dot(query, key, mask=mask, scale=scale, lse=out[1].detach())
    return Reading(recipe, query, key, value, out[0])


@_for(image_windows.OPERATOR)
def _local(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    size = (arguments["rows"].shape[2], arguments["columns"].shape[2])
    value = arguments["value"].flatten(3).mT
    recipe = image_windows.edges_of(out[1], size)
    by_position = lambda maps: maps.flatten(3).mT
    return Reading(recipe, arguments["query"], arguments["key"], value, out[0], arrange=by_position)


@_for("_scaled_dot_product_flash_attention")
def _flash_on_cuda(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    return _scaled(arguments, out[0], out[1], allowed_by, 0)  # bottom right, unlike the others


@_for("_scaled_dot_product_attention_math_for_mps")
def _mps(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    lead, mask = arguments["query"].shape[:-3], arguments.get("attn_mask")
    if mask is not None and len(lead) > 1:
        mask = mask.expand(*lead, *four_axes(mask).shape[-3:])
    arguments = arguments | {name: four_axes(arguments[name]) for name in ("query", "key", "value")}
    arguments["attn_mask"] = None if mask is None else four_axes(mask)
    shift = arguments["query"].shape[2] - arguments["key"].shape[2]
    # It also returns weights, in the dtype of the query: less exact than the recipe.
    return _scaled(arguments, four_axes(out[0]), None, allowed_by, shift)


def _scaled(
    arguments: Arguments,
    output: Tensor,
    lse: Any,
    allowed_by: AllowedBy,
    shift: int,
) -> Reading:
    """An operator of `scaled_dot_product_attention`; its causal mask ends at key = query + shift,
    counted from the bottom right."""
    recipe = scaled_dot_product(arguments, causal_end=shift, allowed_by=allowed_by)
    masked = recipe.mask is not None or recipe.bias is not None
    recipe = replace(recipe, lse=_log_sum_exp(lse, recipe.query, masked=masked))
    return Reading(recipe, recipe.query, recipe.key, arguments["value"], output)


@_for(
    "_flash_attention_forward",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "torch_attn::_varlen_attn",
)
def _flash(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    """(batch, position, head, width), or (position, head, width) for sequences side by side, which
    become one example; causal, windows and ALiBi are aligned at the end of each sequence."""
    for name, meaning in _UNREAD.items():
        if arguments.get(name) is not None:
            raise UnavailableError(f"{name} is given: {meaning}")
    starts = _argument(arguments, "cum_seq_q", "cu_seqlens_q", "cu_seq_q")
    key_starts = _argument(arguments, "cum_seq_k", "cu_seqlens_k", "cu_seq_k")
    packed = starts is not None
    if packed and key_starts is None:
        raise UnavailableError("it has the starts of the queries' sequences, none for the keys'")
    arrange = _from_packed if packed else _from_positions
    query, key, value = (
        arrange(_argument(arguments, name, name[0])) for name in ("query", "key", "value")
    )
    band = _window(arguments)
    alike = query.shape[2] == key.shape[2]
    alike = alike and (key_starts is starts or torch.equal(starts, key_starts))
    mask: Mask | None = band
    if packed:
        mask = _side_by_side(starts, key_starts, query.shape[2], key.shape[2], band, alike)
    slopes = arguments.get("alibi_slopes")
    scale = _argument(arguments, "scale", "softmax_scale")
    lse = out[1][None] if packed and out[1].dim() == 2 else None if packed else out[1]
    recipe = Dot(
        query,
        key,
        mask=mask,
        bias=None if slopes is None else _alibi(slopes, packed and not alike),
        scale=query.shape[3] ** -0.5 if scale is None else scale,
        softcap=arguments.get("softcap") or None,
        # With ALiBi a causal kernel leaves out what a row has in common: another log-sum-exp.
        lse=None if slopes is not None else _log_sum_exp(lse, query, masked=mask is not None),
    )
    return Reading(recipe, query, key, value, out[0], arrange)


_UNREAD = {
    "block_table": "keys lie in pages",
    "leftpad_k": "keys begin at places of their own",
    "seqused_k": "keys are used in part",
}


def _argument(arguments: Arguments, *names: str) -> Any:
    """An argument that operators name differently; None if absent."""
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)


def _from_positions(tensor: Tensor) -> Tensor:
    """(batch, position, head, width) to (batch, head, position, width)."""
    return tensor.transpose(1, 2)


def _from_packed(tensor: Tensor) -> Tensor:
    """(position, head, width) to (1, head, position, width)."""
    return tensor.transpose(0, 1)[None]


def _window(arguments: Arguments) -> Band | None:
    """The window on each side of a query; a negative size is no limit."""
    sizes = arguments.get("window_size")
    if sizes is None:
        sizes = (arguments.get("window_size_left"), arguments.get("window_size_right"))
    left, right = (None if size is None or size < 0 else int(size) for size in sizes)
    if _argument(arguments, "causal", "is_causal"):
        right = 0
    return None if left is None and right is None else Band(left, right)


def _side_by_side(
    starts: Tensor, key_starts: Tensor, queries: int, keys: int, band: Band | None, alike: bool
) -> Mask:
    """Sequences that attend to themselves; `starts` has one entry more than there are."""
    numbers = _numbers(starts, queries)
    numbers = numbers.masked_fill(numbers == len(starts) - 1, -1)  # after the last: padding
    segments = Segments(numbers[None], _numbers(key_starts, keys)[None])
    if band is None:
        return segments
    if alike:
        return segments & band
    ends = (key_starts - starts)[1:].long()  # each sequence is aligned at its own end
    here = torch.arange(queries, device=starts.device) + ends[numbers]
    offset = torch.arange(keys, device=starts.device) - here[:, None]
    allowed = torch.ones_like(offset, dtype=torch.bool)
    if band.left is not None:
        allowed &= offset >= -band.left
    if band.right is not None:
        allowed &= offset <= band.right
    return segments & Pairs(allowed[None, None])


def _numbers(starts: Tensor, length: int) -> Tensor:
    """The sequence number of each position."""
    positions = torch.arange(length, device=starts.device)
    return torch.searchsorted(starts.long(), positions, right=True) - 1


def _alibi(slopes: Tensor, shifted: bool) -> AlibiBias:
    if slopes.dim() == 2 and len(slopes) == 1:
        slopes = slopes[0]
    if slopes.dim() != 1:
        raise UnavailableError(
            f"alibi_slopes has shape {tuple(slopes.shape)}, expected one slope a head"
        )
    if shifted:
        raise UnavailableError(
            "alibi_slopes is given, and the queries' sequences are of other lengths than the keys'"
        )
    return AlibiBias(slopes)


@_for("_native_multi_head_attention")
def _native(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    query, key = arguments["query"], arguments["key"]
    return _projected(arguments, query, None if key is query else key, arguments["num_head"])


@_for("_transformer_encoder_layer_fwd")
def _encoder_layer(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    norm = {}
    if arguments["norm_first"]:
        norm = {
            "norm_weight": arguments["norm_weight_1"],
            "norm_bias": arguments["norm_bias_1"],
            "epsilon": arguments["eps"],
        }
    return _projected(arguments, arguments["src"], None, arguments["num_heads"], **norm)


def _projected(
    arguments: Arguments, query: Tensor, key: Tensor | None, n_heads: int, **norm: Any
) -> Reading:
    mask = _native_mask(arguments.get("mask"), arguments.get("mask_type"), n_heads)
    if query.is_nested:
        lengths = torch.tensor([len(example) for example in query.unbind()], device=query.device)
        query = torch.nested.to_padded_tensor(query, 0.0)
        real = torch.arange(query.shape[1], device=query.device) < lengths[:, None]
        rows = Pairs(real[:, None, :, None] & real[:, None, None, :])
        mask = rows if mask is None else mask & rows
        key = None
    recipe = Projected(
        query,
        arguments["qkv_weight"],
        arguments["qkv_bias"],
        n_heads,
        key_input=key,
        mask=mask,
        **norm,
    )
    return Reading(recipe, query, query if key is None else key)


def _native_mask(mask: Tensor | None, mask_type: int | None, n_heads: int) -> Mask | None:
    """A mask where non-zero means forbidden; type 0 is (query, key), 1 (batch, key), 2 full."""
    if mask is None:
        return None
    allowed = ~mask.bool()
    if mask_type == 1:
        return Padding(allowed)
    if mask_type == 0 or allowed.dim() == 2:
        return Pairs(allowed[None, None])
    return Pairs(allowed if allowed.dim() == 4 else allowed.unflatten(0, (-1, n_heads)))


@_for("flex_attention")
def _flex(arguments: Arguments, out: Any, allowed_by: AllowedBy) -> Reading:
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    recipe = Flex(
        query,
        key,
        torch.arange(query.shape[0], device=query.device),
        torch.arange(query.shape[1], device=query.device),
        score_mod=arguments["score_mod"],
        mask_mod=arguments["block_mask"][-1],
        scale=arguments["scale"],
    )
    return Reading(recipe, query, key, value, out[0])


FLEX_ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale")


def _log_sum_exp(lse: Any, query: Tensor, masked: bool) -> Tensor | None:
    """A kernel's log-sum-exp, if it returns one; 0 for a row without keys."""
    if not isinstance(lse, Tensor) or query.is_meta:
        return None
    by_row: Tensor = lse.squeeze(3) if lse.dim() == 4 and lse.shape[3] == 1 else lse  # cuDNN
    if by_row.shape[-1] > query.shape[2]:
        by_row = by_row[..., : query.shape[2]]  # memory-efficient: padded to a multiple of 32
    if by_row.shape != query.shape[:3]:
        return None
    return torch.nan_to_num(by_row, nan=0.0, neginf=0.0, posinf=0.0) if masked else by_row
