"""Blocks and models built from mechanisms."""

from regard.blocks.attention_block import AttentionBlock
from regard.blocks.cross_block import CrossBlock
from regard.blocks.decoder_block import DecoderBlock
from regard.blocks.decomposable_classifier import DecomposableClassifier
from regard.blocks.encoder_block import EncoderBlock
from regard.blocks.feed_forward import FeedForward
from regard.blocks.parallel_block import ParallelBlock
from regard.blocks.simplified import sas_block, sas_p_block
from regard.blocks.stack import Stack
from regard.blocks.sublayers import (
    ConcatProjection,
    NearIdentityWarning,
    PostNorm,
    PreNorm,
    Residual,
    ScaledResidual,
    Skipless,
    Sublayer,
)
from regard.contract import BlockOutput

__all__ = [
    "AttentionBlock",
    "BlockOutput",
    "ConcatProjection",
    "CrossBlock",
    "DecoderBlock",
    "DecomposableClassifier",
    "EncoderBlock",
    "FeedForward",
    "NearIdentityWarning",
    "ParallelBlock",
    "PostNorm",
    "PreNorm",
    "Residual",
    "ScaledResidual",
    "Skipless",
    "Stack",
    "Sublayer",
    "sas_block",
    "sas_p_block",
]
