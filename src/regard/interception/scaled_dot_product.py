"""What a call of `F.scaled_dot_product_attention`, or of one of its kernels, computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.masks.parts import Band, Mask, Pairs
from regard.recipe import Dot

#: The arguments of `F.scaled_dot_product_attention`, in order.
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def scaled_dot_product(
    arguments: dict[str, Any],
    *,
    causal_end: int | None = None,
    allowed_by: Callable[[Tensor], Tensor | None] = lambda bias: None,
) -> Dot:
    """The recipe of a call, without its values.

    Args:
        arguments: by name; query and key are (batch, head, position, width). Some kernels call
            the mask `attn_bias`.
        causal_end: the last key of a causal query, counted from its own position in the
            bottom-right alignment; the top-left alignment of torch when None.
        allowed_by: the pairs that a float mask allows, where it is known to hold nothing else.
    """
    query, key = arguments["query"], arguments["key"]
    mask: Mask | None = None
    if arguments.get("is_causal"):
        mask = Band(None, query.shape[2] - key.shape[2] if causal_end is None else causal_end)
    bias = arguments.get("attn_mask")
    bias = arguments.get("attn_bias") if bias is None else bias
    if bias is not None:
        allowed = bias if bias.dtype == torch.bool else allowed_by(bias)
        bias = four_axes(bias) if allowed is None else None
        if allowed is not None:
            pairs = Pairs(four_axes(allowed))
            mask = pairs if mask is None else mask & pairs
    scale = arguments.get("scale")
    scale = query.shape[3] ** -0.5 if scale is None else scale
    return Dot(query, key, mask=mask, bias=bias, scale=scale)


def four_axes(tensor: Tensor) -> Tensor:
    """The tensor with four axes: leading ones flattened, missing ones of size 1.

    A tensor of four is returned as it is: a view would be an operator, which other modes see.
    """
    if tensor.dim() == 4:
        return tensor
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor[(None,) * (4 - tensor.dim())]
