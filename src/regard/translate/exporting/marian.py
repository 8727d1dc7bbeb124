"""The folder of a Marian model and tokenizer of transformers (Junczys-Dowmunt et al. 2018).

Marian has norms behind the sub-layers alone, and its tokenizer pieces of sentencepiece alone, with
the case of the text as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import MissingExtraError, UnavailableError
from regard.files import write_text
from regard.record import tensor_file
from regard.translate.checkpoint import Checkpoint
from regard.translate.exporting.exportable import POSITIONS, Shape, transformer_of
from regard.translate.models.transformer import Transformer
from regard.translate.tokens import BEGIN, END, NAMES, PAD, UNKNOWN
from regard.translate.vocabulary import PieceVocabulary


def write_marian(checkpoint: Checkpoint, folder: Path) -> None:
    """Write `MarianMTModel` with its generation settings, and `MarianTokenizer`."""
    library = _library()
    model, shape = transformer_of(checkpoint)
    if shape.norm != "post":
        raise UnavailableError(
            "export: the model has its norms before the sub-layers (model.norm 'pre'), but Marian "
            "in transformers has them behind: expected model.norm 'post'; format ctranslate2 has "
            "both"
        )
    vocabularies = {"source": checkpoint.source, "target": checkpoint.target}
    pieces = {side: _pieces(side, each) for side, each in vocabularies.items()}
    _config(library, checkpoint, model, shape).save_pretrained(folder)
    _generation(library, checkpoint).save_pretrained(folder)
    store = tensor_file.library()
    store.torch.save_file(_weights(model), folder / "model.safetensors", {"format": "pt"})
    _write_tokenizer(folder, pieces, joint=checkpoint.source is checkpoint.target)


def _library() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "transformers") from error
    return transformers


def _pieces(side: str, vocabulary: object) -> PieceVocabulary:
    """A vocabulary that Marian's tokenizer can read texts with."""
    if not isinstance(vocabulary, PieceVocabulary):
        raise UnavailableError(
            f"export: the {side} vocabulary has whole words, but Marian's tokenizer in "
            "transformers reads pieces of sentencepiece: expected vocabulary.kind 'pieces'; "
            "format ctranslate2 has both"
        )
    if vocabulary.lower:
        raise UnavailableError(
            f"export: the {side} vocabulary reads texts in lower case, which Marian's tokenizer "
            "in transformers does not: expected vocabulary.lower = false; with format ctranslate2 "
            "texts are yours to lower"
        )
    return vocabulary


def _config(library: Any, checkpoint: Checkpoint, model: Transformer, shape: Shape) -> Any:
    embeddings = model.embeddings
    feed_forward: Any = model.encoder_blocks[0].feed_forward.part
    tied = embeddings.output is None
    return library.MarianConfig(
        architectures=["MarianMTModel"],
        vocab_size=len(checkpoint.source),
        decoder_vocab_size=len(checkpoint.target),
        max_position_embeddings=POSITIONS,
        d_model=model.positions.width,
        encoder_layers=len(model.encoder_blocks),
        decoder_layers=len(model.decoder_blocks),
        encoder_attention_heads=shape.n_heads,
        decoder_attention_heads=shape.n_heads,
        encoder_ffn_dim=feed_forward.widen.out_features,
        decoder_ffn_dim=feed_forward.widen.out_features,
        activation_function=shape.activation,
        scale_embedding=True,
        share_encoder_decoder_embeddings=tied and embeddings.own_source is None,
        tie_word_embeddings=tied,
        dropout=checkpoint.config.model.dropout,
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        forced_eos_token_id=None,
    )


def _generation(library: Any, checkpoint: Checkpoint) -> Any:
    """The search, as far as transformers has it: its length penalty divides by a power of |Y|."""
    search = checkpoint.config.search
    return library.GenerationConfig(
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
        decoder_start_token_id=BEGIN,
        suppress_tokens=[PAD, BEGIN],
        max_length=search.longest + 1 if search.longest else POSITIONS,
        num_beams=search.beam,
        length_penalty=search.length_penalty if search.beam > 1 else None,
    )


def _weights(model: Transformer) -> dict[str, Tensor]:
    """The weights by the names of `MarianMTModel`, shared ones once."""
    embeddings = model.embeddings
    weights = {"final_logits_bias": embeddings.bias[None]}
    if embeddings.own_source is None:
        weights["model.shared.weight"] = embeddings.target.weight
    else:
        weights["model.encoder.embed_tokens.weight"] = embeddings.source.weight
        weights["model.decoder.embed_tokens.weight"] = embeddings.target.weight
    if embeddings.output is not None:
        weights["lm_head.weight"] = embeddings.output
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for layer, block in enumerate(stack.layers):
            for their_name, module in _modules(block).items():
                for parameter, value in module.state_dict().items():
                    weights[f"model.{name}.layers.{layer}.{their_name}.{parameter}"] = value
    return {name: value.detach().cpu().float().contiguous() for name, value in weights.items()}


def _modules(block: Any) -> dict[str, nn.Module]:
    """The modules of a block by Marian's names."""
    modules = {
        "fc1": block.feed_forward.part.widen,
        "fc2": block.feed_forward.part.narrow,
        "final_layer_norm": block.feed_forward.norm,
    }
    for name, sublayer in (
        ("self_attn", block.self_attention),
        ("encoder_attn", getattr(block, "cross_attention", None)),
    ):
        if sublayer is not None:
            part = sublayer.part
            modules |= {
                f"{name}.q_proj": part.to_query,
                f"{name}.k_proj": part.to_key,
                f"{name}.v_proj": part.to_value,
                f"{name}.out_proj": part.to_output,
                f"{name}_layer_norm": sublayer.norm,
            }
    return modules


def _write_tokenizer(folder: Path, pieces: dict[str, PieceVocabulary], *, joint: bool) -> None:
    """The files that `MarianTokenizer.from_pretrained` reads."""
    for side, vocabulary in pieces.items():
        (folder / f"{side}.spm").write_bytes(vocabulary.model)
    names = {"source": "vocab.json", "target": "target_vocab.json"}
    for side, name in list(names.items())[: 1 if joint else 2]:
        tokens = pieces[side].pieces(range(len(pieces[side])))
        numbers = {token: number for number, token in enumerate(tokens)}
        write_text(folder / name, json.dumps(numbers, ensure_ascii=False))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": not joint,
        "model_max_length": POSITIONS,
        "unk_token": NAMES[UNKNOWN],
        "eos_token": NAMES[END],
        "pad_token": NAMES[PAD],
    }
    write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=1) + "\n")
