"""Speech recognition: conformers, location-aware decoders, Whisper and its hooked cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .absent import imported
from .target import Target
from .truth import each, listed

SAME = "b h q k -> b h q k"
ONE = "b k -> b 1 1 k"  # one query, one head
BRAIN, ESPNET = "speechbrain", "espnet"
TRANSFORMER = "speechbrain.lobes.models.transformer"


def brain(path: str, *args: Any, **settings: Any):
    def build():
        model = imported(path)(*args, **settings)
        return model, (torch.randn(2, 7, 24),), {"pos_embs": torch.randn(1, 13, 24)}

    return build


def brain_asr(attention: str, positions: str, encoder: str):
    def build():
        model = imported(f"{TRANSFORMER}.TransformerASR:TransformerASR")(
            tgt_vocab=30, input_size=12, d_model=24, nhead=3, num_encoder_layers=2,
            num_decoder_layers=2, d_ffn=32, encoder_module=encoder, attention_type=attention,
            positional_encoding=positions, kernel_size=5, causal=False,
            normalize_before=True)  # fmt: skip
        lengths = torch.tensor([1.0, 0.6])
        return model, (torch.randn(2, 10, 12), torch.randint(1, 30, (2, 7)), lengths), {}

    return build


def brain_decoder(kind: str):
    def build():
        model = imported("speechbrain.nnet.RNN:AttentionalRNNDecoder")(
            "gru", kind, hidden_size=7, attn_dim=5, num_layers=1, enc_dim=20, input_size=6,
            channels=3, kernel_size=2)  # fmt: skip
        lengths = torch.tensor([1.0, 0.7, 0.9])
        return model, (torch.randn(3, 4, 6), torch.randn(3, 10, 20), lengths), {}

    return build


def espnet(path: str, *args: Any, **settings: Any):
    """An encoder on features and their lengths."""

    def build():
        model = imported(f"espnet2.asr.{path}")(*args, **settings)
        return model, (torch.randn(2, 31, 20), torch.tensor([31, 23])), {}

    return build


ENCODER = {"output_size": 24, "attention_heads": 3, "num_blocks": 2, "input_layer": "conv2d"}


class Decoding(nn.Module):
    """Some steps of one of ESPnet's recurrent attentions, each with the weights of the last."""

    def __init__(self, attention: nn.Module, steps: int) -> None:
        super().__init__()
        self.attention, self.steps = attention, steps

    def forward(self, states: torch.Tensor, lengths: list[int], queries: torch.Tensor) -> Any:
        self.attention.reset()
        previous, contexts = None, []
        for step in range(self.steps):
            context, previous = self.attention(states, lengths, queries[:, step], previous)
            contexts.append(context)
        return torch.stack(contexts)


def recurrent(name: str, *args: Any, batch: int = 3):
    def build():
        attention = imported(f"espnet.nets.pytorch_backend.rnn.attentions:{name}")(12, 10, *args)
        lengths = [9] * (batch - 1) + [6]
        states, queries = torch.randn(batch, 9, 12), torch.randn(batch, 2, 10)
        return Decoding(attention, 2), (states, lengths, queries), {}

    return build


def espnet_decoder():
    model = imported("espnet2.asr.decoder.transformer_decoder:TransformerDecoder")(
        30, 24, attention_heads=3, linear_units=32, num_blocks=2)  # fmt: skip
    states, tokens = torch.randn(2, 11, 24), torch.randint(1, 30, (2, 7))
    return model, (states, torch.tensor([11, 8]), tokens, torch.tensor([7, 5])), {}


def fastformer():
    model = imported("espnet2.asr.layers.fastformer:FastSelfAttention")(24, 3, 0.0)
    return model, (torch.randn(2, 7, 24), torch.ones(2, 1, 7)), {}


def whisper_model() -> Any:
    module = imported("whisper.model")
    sizes = module.ModelDimensions(
        n_mels=8, n_audio_ctx=12, n_audio_state=24, n_audio_head=3, n_audio_layer=2, n_vocab=50,
        n_text_ctx=16, n_text_state=24, n_text_head=3, n_text_layer=2)  # fmt: skip
    model = module.Whisper(sizes)
    nn.init.normal_(model.decoder.positional_embedding)  # as it comes it is not initialised
    return model


def whisper():
    return whisper_model(), (torch.randn(2, 8, 24), torch.randint(50, (2, 5))), {}


class CachedWhisper(nn.Module):
    """Three tokens, then one more, over the cache that Whisper keeps by hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = whisper_model()

    def forward(self, sound: torch.Tensor, tokens: torch.Tensor) -> Any:
        features = self.model.encoder(sound)
        cache, hooks = self.model.install_kv_cache_hooks()
        try:
            first = self.model.decoder(tokens[:, :4], features, kv_cache=cache)
            second = self.model.decoder(tokens[:, 4:], features, kv_cache=cache)
        finally:
            for hook in hooks:
                hook.remove()
        return first, second


def cached_whisper():
    return CachedWhisper(), (torch.randn(2, 8, 24), torch.randint(50, (2, 5))), {}


PAIR = ("self", "self", "self", "cross", "self", "cross")
TARGETS = [
    Target("ConformerEncoder", BRAIN, brain(
        f"{TRANSFORMER}.Conformer:ConformerEncoder", 2, 24, 32, 3, kernel_size=5),
        each(SAME), "self", quick=True),
    Target("BranchformerEncoder", BRAIN, brain(
        f"{TRANSFORMER}.Branchformer:BranchformerEncoder", 2, 24, 3, kernel_size=5,
        csgu_linear_units=16), each(SAME), "self"),
    Target("TransformerASR, Conformer with RoPEMHA", BRAIN, brain_asr(
        "RoPEMHA", "fixed_abs_sine", "conformer"),
        lambda run: [c.weights if c.weights.dim() == 4 else c.weights.unflatten(0, (2, 3))
                     for c in run.calls], PAIR),
    Target("AttentionalRNNDecoder, location", BRAIN, brain_decoder("location"), each(ONE), "cross"),
    Target("AttentionalRNNDecoder, content", BRAIN, brain_decoder("content"), each(ONE), "cross"),
    Target("AttentionalRNNDecoder, keyvalue", BRAIN, brain_decoder("keyvalue"),
           each("b k 1 -> b 1 1 k"), "cross"),
    Target("ConformerEncoder, latest positions", ESPNET, espnet(
        "encoder.conformer_encoder:ConformerEncoder", 20, rel_pos_type="latest",
        cnn_module_kernel=5, use_flash_attn=False, **ENCODER), each(SAME), "self"),
    Target("ConformerEncoder, legacy positions", ESPNET, espnet(
        "encoder.conformer_encoder:ConformerEncoder", 20, cnn_module_kernel=5,
        use_flash_attn=False, **ENCODER), each(SAME), "self"),
    Target("EBranchformerEncoder", ESPNET, espnet(
        "encoder.e_branchformer_encoder:EBranchformerEncoder", 20, rel_pos_type="latest",
        cgmlp_linear_units=32, cgmlp_conv_kernel=5, use_flash_attn=False, **ENCODER),
        each(SAME), "self"),
    Target("TransformerDecoder", ESPNET, espnet_decoder, each(SAME), ("self", "cross") * 2),
    Target("FastSelfAttention (Fastformer)", ESPNET, fastformer, listed("b h k -> b h 1 k")),
    Target("AttLoc", ESPNET, recurrent("AttLoc", 8, 4, 2), each(ONE), "cross"),
    Target("AttCov", ESPNET, recurrent("AttCov", 8), each(ONE), "cross"),
    Target("AttMultiHeadLoc, one head a call", ESPNET, recurrent(
        "AttMultiHeadLoc", 3, 8, 6, 4, 2, batch=6), each(ONE), "cross"),
    Target("AttMultiHeadDot, one head a call", ESPNET, recurrent(
        "AttMultiHeadDot", 3, 8, 6, batch=6), each(ONE), "cross"),
    Target("Whisper", "openai-whisper", whisper, each(SAME), PAIR, quick=True),
    Target("Whisper with its hooked cache", "openai-whisper", cached_whisper, each(SAME),
           PAIR + PAIR[2:]),
]  # fmt: skip
