"""Parts of torch's transformer layers as parts of ours; the one file that knows their names."""

from __future__ import annotations

import copy

import torch.nn.functional as F
from torch import nn

from regard.blocks.feed_forward import FeedForward
from regard.blocks.sublayers import PostNorm, PreNorm, Residual, Sublayer
from regard.errors import RegardError
from regard.mechanisms import MultiHead

Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def sublayer_of(layer: Layer, part: nn.Module, norm: nn.LayerNorm, dropout: nn.Dropout) -> Sublayer:
    """One part of a layer with its norm, where the layer has it, and its dropout."""
    if isinstance(part, nn.MultiheadAttention):
        part = MultiHead.from_torch(part)
    wrap = PreNorm if layer.norm_first else PostNorm
    return wrap(norm.normalized_shape[0], part, norm=copy.deepcopy(norm), join=Residual(dropout.p))


def feed_forward_of(layer: Layer) -> FeedForward:
    """The two linear layers and what is between them."""
    theirs = layer.linear1
    part = FeedForward(
        theirs.in_features,
        theirs.out_features,
        activation=_activation(layer.activation),
        dropout=layer.dropout.p,
    )
    part.widen, part.narrow = copy.deepcopy(layer.linear1), copy.deepcopy(layer.linear2)
    return part


def _activation(activation: object) -> nn.Module:
    if isinstance(activation, nn.Module):
        return copy.deepcopy(activation)
    if activation is F.relu:
        return nn.ReLU()
    if activation is F.gelu:
        return nn.GELU()
    raise RegardError(f"from_torch: activation is {activation!r}, expected relu, gelu or a module")
