"""Masks: who may attend to whom, in structured parts. **True means "may attend".**

A mask is built with the constructors below and combined with `&`, `|` and `~`. It is evaluated
block by block, so a causal mask over 32k tokens never becomes a matrix.

>>> import torch
>>> from regard import masks
>>> keep = torch.tensor([[True, True, False]])
>>> (masks.causal() & masks.padding(keep)).dense(3, 3)[0, 0].int()
tensor([[1, 0, 0],
        [1, 1, 0],
        [1, 1, 0]], dtype=torch.int32)
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import DtypeError, MaskError
from regard.masks.parts import Band, Mask, Padding, Pairs, Segments
from regard.masks.parts import parts as parts_of
from regard.types import Allowed, Shape

__all__ = [
    "Mask",
    "causal",
    "from_torch",
    "lengths",
    "padding",
    "pairs",
    "segments",
    "window",
]

_CONSTRUCTORS = (
    "masks.padding(keep) for (batch, key), masks.pairs(allowed) for (batch or 1, head or 1, "
    "query or 1, key), masks.causal(), masks.window(left, right), masks.segments(query, key)"
)


def causal() -> Mask:
    """Each query attends to its own position and the ones before; the last query to every key."""
    return Band(None, 0)


def window(left: int | None, right: int | None, *, first: int = 0) -> Mask:
    """Keys at most `left` before and `right` after the query's position; None is no limit.

    The `first` keys of all are seen however far before (the attention sinks of Xiao et al. 2023).
    """
    for name, size in (("left", left), ("right", right)):
        if size is not None and size < 0:
            raise MaskError(f"masks.window: {name}={size}, expected a number >= 0 or None")
    if first < 0:
        raise MaskError(f"masks.window: first={first}, expected a number >= 0")
    return Band(left, right, 0 if left is None else first)


def padding(keep: Bool[Tensor, "batch key"]) -> Mask:
    """Keys that are real, (batch, key), True where real."""
    return Padding(_boolean("masks.padding", keep, 2))


def lengths(sizes: Int[Tensor, " batch"], keys: int) -> Mask:
    """The first `sizes[b]` keys of each example are real."""
    if not isinstance(sizes, Tensor) or sizes.is_floating_point() or sizes.dim() != 1:
        raise MaskError(f"masks.lengths: {sizes!r}, expected a tensor of whole numbers (batch,)")
    if not torch.compiler.is_compiling() and sizes.numel() and int(sizes.max()) > keys:
        raise MaskError(f"masks.lengths: a length of {int(sizes.max())}, but only {keys} keys")
    return Padding(torch.arange(keys, device=sizes.device) < sizes[:, None])


def pairs(allowed: Allowed) -> Mask:
    """A boolean tensor (batch or 1, head or 1, query or 1, key)."""
    return Pairs(_boolean("masks.pairs", allowed, 4))


def segments(
    query: Int[Tensor, "batch query"], key: Int[Tensor, "batch key"] | None = None
) -> Mask:
    """Attend only where segment numbers are equal; `key` defaults to `query`."""
    return Segments(query, query if key is None else key)


def from_torch(
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    *,
    n_heads: int = 1,
) -> tuple[Mask | None, Float[Tensor, "batch head query key"] | None]:
    """The (mask, bias) that mean what `nn.MultiheadAttention`'s two masks mean.

    There a boolean True means "may *not* attend", and a float mask is added to the scores.
    """
    mask: Mask | None = None
    bias: Tensor | None = None
    if attn_mask is not None:
        full = (
            attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, n_heads))
        )
        mask, bias = (Pairs(~full), None) if full.dtype == torch.bool else _split(full)
    if key_padding_mask is not None:
        if key_padding_mask.dtype == torch.bool:
            mask = both(mask, Padding(~key_padding_mask))
        else:
            padded, extra = _split(key_padding_mask[:, None, None])
            mask = both(mask, padded)
            bias = extra if bias is None else bias + extra
    return mask, bias


def _split(added: Tensor) -> tuple[Mask, Tensor]:
    """A float mask as what it forbids, -inf, and what it adds elsewhere."""
    forbidden = added == -torch.inf
    return Pairs(~forbidden), added.masked_fill(forbidden, 0.0)


def both(first: Mask | None, second: Mask | None) -> Mask | None:
    """What both permit, where None permits everything."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def lasting(mask: Mask | None, batch: int) -> Bool[Tensor, "batch key"] | None:
    """What a mask says of keys whatever the query and head, as a state remembers it; or None."""
    if mask is None:
        return None
    kept: Tensor | None = None
    for part in parts_of(mask):
        if isinstance(part, Padding):
            keep = part.keep
        elif isinstance(part, Pairs) and part.allowed.shape[1:3] == (1, 1):
            keep = part.allowed[:, 0, 0]
        else:
            continue
        kept = keep if kept is None else kept & keep
    return None if kept is None else kept.expand(batch, -1)


def with_padding(mask: Mask | None, keep: Bool[Tensor, "batch key"]) -> Mask:
    """`mask` and remembered padding, unless the mask can say by itself which keys are real."""
    if mask is None or all(isinstance(part, Band | Segments) for part in parts_of(mask)):
        return Padding(keep) if mask is None else mask & Padding(keep)
    return mask


def resolve(mask: Mask | Tensor | None, causal_too: bool, shape: Shape) -> Mask | None:
    """The one mask of an attention: `mask` checked against `shape`, intersected with causal."""
    if isinstance(mask, Tensor):
        if mask.is_floating_point():
            raise DtypeError(
                f"mask is {mask.dtype}; a mask is boolean (True = may attend). "
                "To add numbers to the scores pass them as bias="
            )
        if mask.dtype != torch.bool:
            raise DtypeError(f"mask is {mask.dtype}, expected torch.bool: mask.bool()")
        if mask.dim() != 4:
            raise MaskError(
                f"mask has {mask.dim()} axes {tuple(mask.shape)}, expected 4: fewer cannot be told "
                "apart. If it is (query, key) write mask[None, None]; if (batch, key), "
                f"mask[:, None, None]. Or use {_CONSTRUCTORS}"
            )
        mask = pairs(mask)
    elif mask is not None and not isinstance(mask, Mask):
        call = f"call it: masks.{mask.__name__}(...)" if callable(mask) else f"use {_CONSTRUCTORS}"
        raise DtypeError(f"mask is {type(mask).__name__}, not a Mask; {call}")
    if mask is not None:
        mask.check(shape)
    # The last query sees every key, so that causality asks nothing of a single one.
    return both(mask, causal()) if causal_too and shape.queries != 1 else mask


def clean(tensor: Tensor, alive: Bool[Tensor, "batch head key"] | None) -> Tensor:
    """`tensor` (batch, group, key, width) or (batch, key, width), zero at keys nobody may see.

    Zeroing (not multiplying) is what keeps a NaN there from reaching outputs and gradients.
    """
    if alive is None:
        return tensor
    if tensor.dim() == 3:
        seen = alive.any(1)
    elif alive.shape[1] in (1, tensor.shape[1]):
        seen = alive
    else:  # several heads share a key head: alive if any of them sees it
        seen = alive.unflatten(1, (tensor.shape[1], -1)).any(2)
    return torch.where(seen.to(tensor.device)[..., None], tensor, tensor.new_zeros(()))


def _boolean(argument: str, tensor: Tensor, axes: int) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise DtypeError(f"{argument}: {type(tensor).__name__}, expected a boolean tensor")
    if tensor.dtype != torch.bool:
        raise DtypeError(
            f"{argument}: dtype {tensor.dtype}, expected torch.bool (True = may attend)"
        )
    if tensor.dim() != axes:
        raise MaskError(
            f"{argument}: {tensor.dim()} axes {tuple(tensor.shape)}, expected {axes}. "
            f"Use {_CONSTRUCTORS}"
        )
    return tensor
