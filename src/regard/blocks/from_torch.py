"""Sub-layers from torch's transformer layers; the only file that knows their attribute names."""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import nn

from regard.blocks.feed_forward import FeedForward
from regard.blocks.sublayers import PostNorm, PreNorm, Residual, Sublayer
from regard.errors import RegardError
from regard.mechanisms import MultiHead

Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def sublayer_of(
    layer: Layer, module: nn.Module, norm: nn.LayerNorm, dropout: nn.Dropout
) -> Sublayer:
    """A module of a layer with its norm, before or after it, and its dropout."""
    if isinstance(module, nn.MultiheadAttention):
        module = MultiHead.from_torch(module)
    wrap = PreNorm if layer.norm_first else PostNorm
    return wrap(
        norm.normalized_shape[0], module, norm=copy.deepcopy(norm), join=Residual(dropout.p)
    )


def feed_forward_of(layer: Layer) -> FeedForward:
    """The two linear layers of a layer, with activation and dropout."""
    feed_forward = FeedForward(
        layer.linear1.in_features,
        layer.linear1.out_features,
        activation=_activation(layer.activation),
        dropout=layer.dropout.p,
    )
    feed_forward.widen = copy.deepcopy(layer.linear1)
    feed_forward.narrow = copy.deepcopy(layer.linear2)
    return feed_forward


def _activation(activation: object) -> nn.Module:
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if activation is F.relu:
        return nn.ReLU()
    if activation is F.gelu:
        return nn.GELU()
    raise RegardError(f"from_torch: activation is {activation!r}, expected relu, gelu or a module")
