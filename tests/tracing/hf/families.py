"""Tiny random models of the families people use, each with its inputs and the sites it must show.

The truth about a family is the `output_attentions` of its eager implementation, same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers as hf
from tiny import randomise
from torch import Tensor, nn
from truth import eager_weights

ALL = ("eager", "sdpa", "flex_attention")
NO_FLEX = ("eager", "sdpa")
BATCH, LENGTH, TARGET, WIDTH, HEADS, LAYERS = 2, 12, 7, 64, 4, 2

TEXT = {
    "vocab_size": 99,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 96,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {  # an encoder and a decoder, in the words of BART
    "vocab_size": 99,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "decoder_start_token_id": 2,
    **SPECIAL,
}
IMAGE = {"image_size": 32, "patch_size": 8, "num_channels": 3}


@dataclass(frozen=True)
class Family:
    """One family: how to build it, what it takes, and where its attention happens."""

    model: type[nn.Module]
    config: Callable[[], object]
    inputs: Callable[[], dict[str, Tensor]]
    sites: tuple[str, ...]
    implementations: tuple[str, ...] = ALL

    def build(self, implementation: str | None = None, seed: int = 0) -> nn.Module:
        config = self.config()
        torch.manual_seed(seed)
        model = self.model._from_config(config, **_chosen(implementation))
        randomise(model, seed)
        return model.eval()

    def truth(self, given: dict[str, Tensor]) -> list[Tensor]:
        """The eager twin's weights, in the order in which they happen."""
        twin = self.build("eager")
        with torch.no_grad():
            told = in_order(twin(**given, output_attentions=True))
        if len(told) == len(self.sites):
            return told
        return [weights for _, weights in eager_weights(twin, given)]  # Swin tells one a stage


def _chosen(implementation: str | None) -> dict[str, str]:
    return {} if implementation is None else {"attn_implementation": implementation}


def in_order(output) -> list[Tensor]:
    """Weights of an output: encoder first, then decoder and cross by turns; parts in order."""
    if output.get("cross_attentions"):
        pairs = zip(output.decoder_attentions, output.cross_attentions)
        return [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]
    parts = [output.get("vision_model_output"), output.get("text_model_output")]
    if any(parts):
        return [weights for part in parts for weights in part.attentions]
    return list(output.attentions)


def words(batch: int = BATCH, length: int = LENGTH, seed: int = 1) -> Tensor:
    return torch.randint(5, 99, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded() -> dict[str, Tensor]:
    """Two texts; the second one is shorter, and padded at its end."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, -4:] = 0
    return {"input_ids": words(), "attention_mask": mask}


def pair() -> dict[str, Tensor]:
    return padded() | {"decoder_input_ids": words(length=TARGET, seed=2)}


def pixels() -> dict[str, Tensor]:
    noise = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    return {"pixel_values": noise}


def sound() -> dict[str, Tensor]:
    noise = torch.randn(BATCH, 16, 40, generator=torch.Generator().manual_seed(4))
    return {"input_features": noise, "decoder_input_ids": words(length=TARGET, seed=2)}


def layers(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(LAYERS))


def both(encoder: str, *decoder: str) -> tuple[str, ...]:
    last = tuple(name.format(i) for i in range(LAYERS) for name in decoder)
    return layers(encoder) + last


BART_SITES = both(
    "encoder.layers.{}.self_attn", "decoder.layers.{}.self_attn", "decoder.layers.{}.encoder_attn"
)

FAMILIES: dict[str, Family] = {
    "bert": Family(
        hf.BertModel,
        lambda: hf.BertConfig(**TEXT),
        padded,
        layers("encoder.layer.{}.attention.self"),
    ),
    "gpt2": Family(
        hf.GPT2Model,
        lambda: hf.GPT2Config(vocab_size=99, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, **SPECIAL),
        padded,
        layers("h.{}.attn"),
        NO_FLEX,
    ),
    "llama": Family(
        hf.LlamaModel,
        lambda: hf.LlamaConfig(**TEXT, num_key_value_heads=2, **SPECIAL),
        padded,
        layers("layers.{}.self_attn"),
    ),
    "mistral": Family(
        hf.MistralModel,
        lambda: hf.MistralConfig(**TEXT, num_key_value_heads=2, sliding_window=5),
        padded,
        layers("layers.{}.self_attn"),
    ),
    "mixtral": Family(
        hf.MixtralModel,
        lambda: hf.MixtralConfig(**TEXT, num_key_value_heads=2, num_local_experts=4),
        padded,
        layers("layers.{}.self_attn"),
    ),
    "gpt-oss": Family(
        hf.GptOssModel,
        lambda: hf.GptOssConfig(
            **TEXT, num_key_value_heads=2, head_dim=16, num_local_experts=4, sliding_window=5
        ),
        padded,
        layers("layers.{}.self_attn"),
        ("eager",),  # its sinks with flex attention need another device
    ),
    "t5": Family(
        hf.T5Model,
        lambda: hf.T5Config(
            vocab_size=99, d_model=WIDTH, d_kv=16, d_ff=96, num_layers=LAYERS, num_heads=HEADS
        ),
        pair,
        both(
            "encoder.block.{}.layer.0.SelfAttention",
            "decoder.block.{}.layer.0.SelfAttention",
            "decoder.block.{}.layer.1.EncDecAttention",
        ),
        NO_FLEX,  # transformers' own takes one text at a time: see test_t5_with_flex_attention
    ),
    "bart": Family(hf.BartModel, lambda: hf.BartConfig(**PAIR), pair, BART_SITES),
    "marian": Family(hf.MarianModel, lambda: hf.MarianConfig(**PAIR), pair, BART_SITES),
    "whisper": Family(
        hf.WhisperModel,
        lambda: hf.WhisperConfig(**PAIR, num_mel_bins=16, max_source_positions=20),
        sound,
        BART_SITES,
    ),
    "vit": Family(
        hf.ViTModel,
        lambda: hf.ViTConfig(**{k: v for k, v in TEXT.items() if k != "vocab_size"}, **IMAGE),
        pixels,
        layers("layers.{}.attention"),
    ),
    "swin": Family(
        hf.SwinModel,
        lambda: hf.SwinConfig(
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        pixels,
        tuple(f"encoder.layers.{i}.blocks.{j}.attention" for i in range(2) for j in range(2)),
        NO_FLEX,
    ),
    "deberta": Family(
        hf.DebertaModel,
        lambda: hf.DebertaConfig(
            **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0
        ),
        padded,
        layers("encoder.layer.{}.attention.self"),
        ("eager",),
    ),
    "deberta-v2": Family(
        hf.DebertaV2Model,
        lambda: hf.DebertaV2Config(
            **TEXT, relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0
        ),
        padded,
        layers("encoder.layer.{}.attention.self"),
        ("eager",),
    ),
    "albert": Family(
        hf.AlbertModel,
        lambda: hf.AlbertConfig(**TEXT, embedding_size=24),
        padded,
        tuple(
            "encoder.albert_layer_groups.0.albert_layers.0.attention" + call for call in ("", "#2")
        ),
    ),
    "clip": Family(
        hf.CLIPModel,
        lambda: hf.CLIPConfig(
            text_config={**TEXT, "max_position_embeddings": 20, **SPECIAL},
            vision_config={**TEXT, **IMAGE},
            projection_dim=24,
        ),
        lambda: padded() | pixels(),
        layers("vision_model.encoder.layers.{}.self_attn")
        + layers("text_model.encoder.layers.{}.self_attn"),
    ),
}
