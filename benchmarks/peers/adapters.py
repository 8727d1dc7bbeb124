"""One way to ask every peer the same question: loaders, identity projections and adapters.

With identity projections the inputs are the heads themselves, so peers that project can be
compared with functions that do not.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard

os.environ.setdefault("KERAS_BACKEND", "torch")

Answer = tuple[Tensor, Tensor | None]


class Unsupported(Exception):
    """The peer has no way to be asked this."""


@dataclass(frozen=True)
class Probe:
    """One question; with `rows`, only the first so many queries are compared."""

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    keep: Tensor | None = None
    causal: bool = False
    rows: int | None = None

    @property
    def square(self) -> bool:
        return self.query.shape[2] == self.key.shape[2]

    @property
    def alone(self) -> bool:
        """Self-attention: queries, keys and values are one tensor."""
        return self.query is self.key and self.key is self.value

    def allowed(self) -> Tensor | None:
        """Padding and square causality in one (batch, 1, query, key) tensor, True = may attend."""
        keep = None if self.keep is None else self.keep[:, None, None]
        if not self.causal:
            return keep
        if not self.square:
            raise Unsupported
        past = torch.ones(self.query.shape[2], self.key.shape[2], dtype=torch.bool).tril()
        return past[None, None] if keep is None else keep & past


class Missing(Exception):
    """The peer is not installed."""


def load_keras() -> Any:
    try:
        return importlib.import_module("keras")
    except ImportError as error:
        raise Missing(str(error)) from error


def load_xt() -> Any:
    try:
        return importlib.import_module("x_transformers.attend")
    except ImportError as error:
        raise Missing(str(error)) from error


def load_timm() -> Any:
    """timm's attention file. Where torchvision is missing, timm as a whole cannot be imported;
    the file itself can, inside an empty package of the same name."""
    if "timm.layers.attention" in sys.modules:
        return sys.modules["timm.layers.attention"]
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        raise Missing("No module named 'timm'")
    root = Path(spec.origin).parent
    for name, place in (("timm", root), ("timm.layers", root / "layers")):
        package = types.ModuleType(name)
        package.__path__ = [str(place)]
        sys.modules[name] = package
    return importlib.import_module("timm.layers.attention")


def identity_torch(width: int, heads: int, dtype: torch.dtype, **options: Any) -> Any:
    module = nn.MultiheadAttention(width, heads, batch_first=True, dtype=dtype, **options).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(width))
    return module


def identity_timm(width: int, heads: int, dtype: torch.dtype, **options: Any) -> Any:
    module = load_timm().Attention(width, num_heads=heads, dtype=dtype, **options).eval()
    with torch.no_grad():
        module.qkv.weight.copy_(torch.eye(width).repeat(3, 1))
        module.proj.weight.copy_(torch.eye(width))
        module.proj.bias.zero_()
    return module


def identity_keras(
    heads: int, width: int, query: Tensor, value: Tensor, groups: int | None = None, **options: Any
) -> Any:
    """layers.MultiHeadAttention, or GroupQueryAttention where `groups` are given."""
    layers = load_keras().layers
    options |= {"use_bias": False, "dtype": str(query.dtype).removeprefix("torch.")}
    if groups is None:
        layer = layers.MultiHeadAttention(heads, width, **options)
    else:
        layer = layers.GroupQueryAttention(width, heads, groups, **options)
    layer.build(query.shape, value.shape)
    inner, outer = torch.eye(value.shape[2]), torch.eye(query.shape[2])
    projected = [
        outer.reshape(-1, heads, width),
        inner.reshape(-1, groups or heads, width),
        inner.reshape(-1, groups or heads, width),
        outer.reshape(heads, width, -1),
    ]
    layer.set_weights([part.numpy() for part in projected])
    return layer


# Adapters: each answers a probe with (output, weights), both with a head axis.


def ask_regard(probe: Probe) -> Answer:
    keep = None if probe.keep is None else regard.masks.padding(probe.keep)
    out = regard.attend(
        probe.query, probe.key, probe.value, mask=keep, causal=probe.causal, weights=True
    )
    return out.output, out.weights


def ask_sdpa(probe: Probe) -> Answer:
    grouped = probe.query.shape[1] != probe.key.shape[1]
    ask = partial(F.scaled_dot_product_attention, probe.query, probe.key, probe.value)
    if probe.keep is None:
        return ask(is_causal=probe.causal, enable_gqa=grouped), None
    return ask(attn_mask=probe.allowed(), enable_gqa=grouped), None


def merge(heads: Tensor) -> Tensor:
    """(batch, head, position, width) to (batch, position, head · width)."""
    return heads.transpose(1, 2).flatten(2)


def split(features: Tensor, heads: int) -> Tensor:
    return features.unflatten(2, (heads, features.shape[2] // heads)).transpose(1, 2)


def ask_mha(probe: Probe, weights: bool, fast: bool) -> Answer:
    """`nn.MultiheadAttention`; without gradients and on one tensor it takes its fast path."""
    heads = probe.query.shape[1]
    if (fast and not probe.alone) or heads != probe.key.shape[1]:
        raise Unsupported
    query, key, value = (merge(part) for part in (probe.query, probe.key, probe.value))
    if probe.alone:
        key = value = query
    module = identity_torch(query.shape[2], heads, query.dtype)
    with torch.set_grad_enabled(not fast):
        output, found = module(
            query,
            key,
            value,
            key_padding_mask=None if probe.keep is None else ~probe.keep,
            attn_mask=~square_causal(probe) if probe.causal else None,
            need_weights=weights,
            average_attn_weights=False,
        )
    return split(output, heads), found


def square_causal(probe: Probe) -> Tensor:
    if not probe.square:
        raise Unsupported
    return torch.ones(probe.query.shape[2], probe.key.shape[2], dtype=torch.bool).tril()


def ask_keras(probe: Probe, grouped: bool, scores: bool) -> Answer:
    heads, groups, width = probe.query.shape[1], probe.key.shape[1], probe.query.shape[3]
    if groups != heads and not grouped:
        raise Unsupported
    query, key, value = (merge(part) for part in (probe.query, probe.key, probe.value))
    layer = identity_keras(heads, width, query, value, groups=groups if grouped else None)
    found = layer(
        query,
        value,
        key,
        value_mask=probe.keep,
        use_causal_mask=probe.causal,
        return_attention_scores=scores,
    )
    output, weights = found if scores else (found, None)
    return split(output, heads), weights


def ask_keras_attention(probe: Probe) -> Answer:
    """`keras.layers.Attention` has no heads and no 1/√width: heads go to the batch axis."""
    batch, heads, _, width = probe.query.shape
    if probe.key.shape[1] != heads:
        raise Unsupported
    layer = load_keras().layers.Attention(dtype=str(probe.query.dtype).removeprefix("torch."))
    query, key, value = (part.flatten(0, 1) for part in (probe.query, probe.key, probe.value))
    keep = None if probe.keep is None else [None, probe.keep.repeat_interleave(heads, 0)]
    output, weights = layer(
        [query * width**-0.5, value, key],
        mask=keep,
        use_causal_mask=probe.causal,
        return_attention_scores=True,
    )
    return output.unflatten(0, (batch, heads)), weights.unflatten(0, (batch, heads))


def ask_xt(probe: Probe, flash: bool) -> Answer:
    attend = load_xt().Attend(causal=probe.causal, flash=flash)
    output, between = attend(probe.query, probe.key, probe.value, mask=probe.keep)
    return output, between.post_softmax_attn


def ask_timm(probe: Probe, fused: bool) -> Answer:
    if not probe.alone:
        raise Unsupported
    x = merge(probe.query)
    module = identity_timm(x.shape[2], probe.query.shape[1], x.dtype)
    module.fused_attn = fused
    return split(module(x, attn_mask=probe.allowed()), probe.query.shape[1]), None


ADAPTERS: dict[str, tuple[str, Callable[[Probe], Answer], bool]] = {
    # name: (distribution, adapter, whether weights are asked)
    "F.scaled_dot_product_attention": ("torch", ask_sdpa, False),
    "nn.MultiheadAttention": ("torch", partial(ask_mha, weights=True, fast=False), True),
    "nn.MultiheadAttention, need_weights=False": (
        "torch",
        partial(ask_mha, weights=False, fast=False),
        False,
    ),
    "nn.MultiheadAttention, no_grad": ("torch", partial(ask_mha, weights=True, fast=True), True),
    "nn.MultiheadAttention, no_grad, need_weights=False": (
        "torch",
        partial(ask_mha, weights=False, fast=True),
        False,
    ),
    "layers.MultiHeadAttention": ("keras", partial(ask_keras, grouped=False, scores=False), False),
    "layers.MultiHeadAttention, scores": (
        "keras",
        partial(ask_keras, grouped=False, scores=True),
        True,
    ),
    "layers.GroupQueryAttention": ("keras", partial(ask_keras, grouped=True, scores=False), False),
    "layers.GroupQueryAttention, scores": (
        "keras",
        partial(ask_keras, grouped=True, scores=True),
        True,
    ),
    "layers.Attention": ("keras", ask_keras_attention, True),
    "Attend": ("x-transformers", partial(ask_xt, flash=False), True),
    "Attend, flash": ("x-transformers", partial(ask_xt, flash=True), False),
    "timm.layers.Attention, fused": ("timm", partial(ask_timm, fused=True), False),
    "timm.layers.Attention, not fused": ("timm", partial(ask_timm, fused=False), False),
}
