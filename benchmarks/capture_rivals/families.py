"""Tiny transformers models in their default implementation, as targets like those of the corpus.

The truth is what a copy in eager mode returns as its attentions.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import transformers
from targets import Case, Target
from torch import Tensor

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 64, "vocab_size": 99, "pad_token_id": 0, "attention_dropout": 0.0}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
PAIR = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
PAIR |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
PAIR |= {"vocab_size": 99, "pad_token_id": 0, "max_position_embeddings": 64}
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}


def _words(length: int = 9) -> Tensor:
    return torch.randint(1, 99, (2, length))


def _one(length: int = 9) -> dict[str, Tensor]:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, 6:] = 0
    return {"input_ids": _words(length), "attention_mask": mask}


def _two() -> dict[str, Tensor]:
    return {"input_ids": _words(7), "decoder_input_ids": _words(5)}


def _image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _sound() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": _words(5)}


def _both() -> dict[str, Tensor]:
    return {"input_ids": _words(6), "pixel_values": torch.randn(2, 3, 32, 32)}


def _build(name: str, inputs: Any, settings: dict[str, Any]) -> Case:
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}Model")._from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)  # far from even rows
    given = inputs()
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        output = eager(**given, output_attentions=True)
    return Case(model, (), given, _in_order(output))


def _in_order(output: Any) -> list[Tensor]:
    """Attentions as they happen: in a decoder layer, over itself and then over the encoder."""
    if "text_model_output" in output:
        parts = (output.vision_model_output, output.text_model_output)
        return [one for part in parts for one in part.attentions]
    if getattr(output, "decoder_attentions", None) is None:
        return list(output.attentions)
    pairs = zip(output.decoder_attentions, output.cross_attentions)
    return [*output.encoder_attentions, *(one for pair in pairs for one in pair)]


DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99}
T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": 99}
WHISPER = PAIR | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16}
CLIP = {"text_config": SMALL, "vision_config": IMAGE, "projection_dim": 16}

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Bert": (_one, SMALL),
    "Roberta": (_one, SMALL),
    "Albert": (_one, SMALL | {"embedding_size": 16}),
    "DistilBert": (
        _one,
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 99},
    ),
    "DebertaV2": (_one, SMALL | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "GPT2": (_one, {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99}),
    "GPTNeoX": (_one, SMALL),
    "Llama": (_one, GROUPED),
    "Mistral": (_one, GROUPED | {"sliding_window": 4}),
    "Mixtral": (_one, GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "Qwen3": (_one, GROUPED),
    "GptOss": (_one, GROUPED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "T5": (_two, T5),
    "Bart": (_two, PAIR),
    "Marian": (_two, PAIR | {"decoder_start_token_id": 0}),
    "Whisper": (_sound, WHISPER),
    "ViT": (_image, IMAGE),
    "CLIP": (_both, CLIP),
}


def targets() -> list[Target]:
    return [
        Target(f"transformers_{name}", "transformers", partial(_build, name, *made))
        for name, made in FAMILIES.items()
    ]
