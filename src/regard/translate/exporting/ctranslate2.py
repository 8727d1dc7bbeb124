"""The folder of a model of CTranslate2 (Klein et al. 2020), which has an engine of its own.

The format has a Transformer with either place of the norms and any tying, and its tokens. It has no
text: the sentencepiece models of pieces lie beside the model, as `source.spm` and `target.spm`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.blocks.sublayers import Sublayer
from regard.errors import MissingExtraError
from regard.translate.alignment.heads import shown_head
from regard.translate.checkpoint import Checkpoint
from regard.translate.exporting.exportable import POSITIONS, Shape, transformer_of
from regard.translate.models.transformer import Transformer, sinusoids
from regard.translate.tokens import BEGIN, END, NAMES, PAD, UNKNOWN
from regard.translate.vocabulary import PieceVocabulary

_NEVER = -1e4  # bias of the tokens that our search never says; float16 has it too
_ALL = 0  # heads: their mean is what `return_attention=True` returns


def write_ctranslate2(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the model, its vocabularies and, of pieces, the sentencepiece models.

    `return_attention=True` gives the mean of the heads of the layer that our matrices show.
    """
    library = _library()
    model, shape = transformer_of(checkpoint)
    spec = _specification(library, model, shape, _alignment_layer(checkpoint, model))
    _fill_ends(spec, model)
    for their_block, block in zip(spec.encoder.layer, model.encoder_blocks):
        _fill_attention(their_block.self_attention, block.self_attention, 3)
        _fill_feed_forward(their_block.ffn, block.feed_forward)
    for their_block, decoder_block in zip(spec.decoder.layer, model.decoder_blocks):
        _fill_attention(their_block.self_attention, decoder_block.self_attention, 3)
        _fill_attention(their_block.attention, decoder_block.cross_attention, 1)
        _fill_feed_forward(their_block.ffn, decoder_block.feed_forward)
    vocabularies = {"source": checkpoint.source, "target": checkpoint.target}
    spec.register_source_vocabulary(checkpoint.source.pieces(range(len(checkpoint.source))))
    spec.register_target_vocabulary(checkpoint.target.pieces(range(len(checkpoint.target))))
    spec.validate()
    spec.optimize()  # stores equal arrays once
    spec.save(str(folder))
    for side, vocabulary in vocabularies.items():
        if isinstance(vocabulary, PieceVocabulary):
            (folder / f"{side}.spm").write_bytes(vocabulary.model)


def _library() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise MissingExtraError("ctranslate2", "ctranslate2") from error
    return ctranslate2


def _alignment_layer(checkpoint: Checkpoint, model: Transformer) -> int:
    head, _ = shown_head(model, checkpoint.extra)
    assert head is not None  # a Transformer attends to the source
    return list(model.sites).index(head.site)


def _specification(library: Any, model: Transformer, shape: Shape, alignment_layer: int) -> Any:
    """Sizes, options and special tokens, without weights."""
    spec = library.specs.TransformerSpec.from_config(
        (len(model.encoder_blocks), len(model.decoder_blocks)),
        shape.n_heads,
        pre_norm=shape.norm == "pre",
        activation=library.specs.Activation[shape.activation.upper()],
        alignment_layer=alignment_layer,
        alignment_heads=_ALL,
    )
    config = spec.config
    config.bos_token = config.decoder_start_token = NAMES[BEGIN]
    config.eos_token, config.unk_token = NAMES[END], NAMES[UNKNOWN]
    config.add_source_eos = True
    return spec


def _fill_ends(spec: Any, model: Transformer) -> None:
    """Embeddings, positions, last norms and the output layer."""
    embeddings = model.embeddings
    spec.encoder.embeddings[0].weight = _array(embeddings.source.weight)
    spec.decoder.embeddings.weight = _array(embeddings.target.weight)
    positions = _array(sinusoids(0, POSITIONS, model.positions.width))
    for side, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        side.position_encodings.encodings = positions
        if isinstance(stack.norm, nn.LayerNorm):
            _fill_norm(side.layer_norm, stack.norm)
    bias = embeddings.bias.detach().clone()
    bias[[PAD, BEGIN]] = _NEVER
    spec.decoder.projection.weight = _array(embeddings.output_weight)
    spec.decoder.projection.bias = _array(bias)


def _fill_attention(spec: Any, sublayer: Sublayer, fused: int) -> None:
    """One attention; `fused` of query, key and value are one matrix, the others a second one."""
    part: Any = sublayer.part
    inner = [part.to_query, part.to_key, part.to_value]
    groups = [group for group in (inner[:fused], inner[fused:]) if group]
    for their_linear, linears in zip(spec.linear, [*groups, [part.to_output]]):
        _fill_linear(their_linear, *linears)
    _fill_norm(spec.layer_norm, sublayer.norm)


def _fill_feed_forward(spec: Any, sublayer: Sublayer) -> None:
    part: Any = sublayer.part
    _fill_linear(spec.linear_0, part.widen)
    _fill_linear(spec.linear_1, part.narrow)
    _fill_norm(spec.layer_norm, sublayer.norm)


def _fill_linear(spec: Any, *linears: nn.Linear) -> None:
    """Linear layers of one input, as one."""
    spec.weight = _array(torch.cat([linear.weight for linear in linears]))
    spec.bias = _array(torch.cat([linear.bias for linear in linears]))


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().float().contiguous().numpy()
