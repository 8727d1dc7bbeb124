"""Traces to draw, each with what `regard.viewer.page` is told besides."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
import regard.cli.packaged
from regard.aggregate import Words
from regard.memory import NTM

SENTENCE = "The unbelievably tired animal didn't cross the street because it was snowing."

#: What a page must show and never run, and what is hard to draw.
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "<svg onload=alert(2)>",
    "\"quoted\" & 'quoted'",
    "${alert(3)}",
    "javascript:alert(4)",
    "שלום",
    "مرحبا",
    "注意力",
    "👩‍👩‍👧‍👦",
    "é",
    "null\x00byte",
    "\x1b[31m\x07",
    "\u202egnihton",
    "tab\tand\nline",
    "",
    " ",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 3,
]


@dataclass(frozen=True)
class Drawn:
    """A trace, and the options of its page."""

    trace: regard.Trace
    options: dict[str, Any] = field(default_factory=dict)

    def weights(self, site: int) -> torch.Tensor:
        """Weights of one site, (head, query, key), in double precision."""
        return self.trace[site].weights()[0].double()


@functools.cache
def sentence() -> Drawn:
    """MiniLM on one sentence, with its words."""
    return _minilm(SENTENCE)


@functools.cache
def graded() -> Drawn:
    """The same with gradients, for relevance."""
    loaded = regard.cli.packaged.minilm()
    encoded = loaded.encode(SENTENCE)
    with regard.capture(loaded.model, grad=True, tokens=encoded.tokens) as trace:
        loaded.model(**encoded.inputs).last_hidden_state[0].square().sum().backward()
    loaded.model.zero_grad(set_to_none=True)
    return Drawn(trace, {"words": encoded.words, "title": "MiniLM, with gradients"})


@functools.cache
def licence() -> Drawn:
    """MiniLM on 512 tokens."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    tokenizer = regard.cli.packaged.minilm().tokenizer
    end = tokenizer(text, return_offsets_mapping=True)["offset_mapping"][510][1]
    return _minilm(text[:end])


def _minilm(text: str) -> Drawn:
    loaded = regard.cli.packaged.minilm()
    encoded = loaded.encode(text)
    with torch.no_grad(), regard.capture(loaded.model, tokens=encoded.tokens) as trace:
        loaded.model(**encoded.inputs)
    return Drawn(trace, {"words": encoded.words, "title": f"MiniLM, {len(encoded.tokens)} tokens"})


@functools.cache
def story() -> Drawn:
    """SmolLM2 going on with a sentence by twelve tokens, stitched; its first five layers."""
    loaded = regard.cli.packaged.smollm2()
    given = loaded.tokenizer("Once upon a time there was a little", return_tensors="pt")
    prompt = given["input_ids"].shape[1]
    with torch.no_grad(), regard.capture(loaded.model, where=range(5)) as trace:
        output = loaded.model.generate(
            **given, max_new_tokens=12, do_sample=False, return_dict_in_generate=True
        )
    tokens = loaded.tokenizer.convert_ids_to_tokens(output.sequences[0, :-1])
    stitched = regard.stitch(trace, output).with_tokens(tokens)
    return Drawn(stitched, {"prompt": prompt, "title": "SmolLM2 tells a story"})


@functools.cache
def translation() -> Drawn:
    """A small encoder and decoder; the parts matter, so that its weights are random."""
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 32, batch_first=True).eval()
    source, target = (
        ["I", "love", "you", "so", "very", "much", "."],
        ["je", "t'", "aime", "énormément", "."],
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        trace = regard.trace(
            model,
            4 * torch.randn(1, len(source), 32, generator=generator),
            4 * torch.randn(1, len(target), 32, generator=generator),
        )
    named = [
        record.with_tokens(
            source if "encoder" in record.name else target,
            target if record.attends == "self" and "decoder" in record.name else source,
        )
        for record in trace
    ]
    return Drawn(regard.Trace(named), {"title": "A small translator"})


@functools.cache
def speech() -> Drawn:
    """Whisper on three seconds of speech: 1500 moments against words."""
    from loaders import whisper_tiny

    model, features = whisper_tiny()
    said = torch.tensor([[50257, 50362, 679, 373, 407, 281, 2801, 12, 6381, 1335, 1862, 582]])
    with torch.no_grad(), regard.capture(model, where="*encoder_attn") as trace:
        model(features, decoder_input_ids=said)
    names = [
        "start",
        "notime",
        "He",
        "was",
        "not",
        "an",
        "ill",
        "-",
        "dis",
        "posed",
        "young",
        "man",
    ]
    moments = [f"{place / 50:.2f} s" for place in range(1500)]
    return Drawn(trace.with_tokens(names, moments), {"title": "Whisper listens"})


@functools.cache
def disc() -> Drawn:
    """MobileSAM's mask decoder, asked for the disc in an image: 7 tokens over 64 × 64 patches."""
    from loaders import mobile_sam

    model, given = mobile_sam()
    with torch.no_grad(), regard.capture(model, where="*token_to_image") as trace:
        model([given], multimask_output=False)
    names = ["quality", "mask 0", "mask 1", "mask 2", "mask 3", "the point", "no point"]
    places = [f"{row}, {column}" for row in range(64) for column in range(64)]
    image = (given["image"] / 255)[:, ::4, ::4]
    options = {"image": image, "patches": (64, 64), "title": "MobileSAM finds a disc"}
    return Drawn(trace.with_tokens(names, places), options)


class Gated(nn.Module):
    """Two blocks at two sizes, each with a gate of channels and one of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.ModuleList([nn.Conv2d(3, 48, 3, 2, 1), nn.Conv2d(48, 48, 3, 2, 1)])
        self.channel = nn.ModuleList(nn.Linear(48, 48) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for convolve, channel in zip(self.convolve, self.channel):
            x = convolve(x)
            x = x * channel(x.mean((2, 3))).sigmoid()[..., None, None]
            x = x * (8 * x.mean(1, keepdim=True)).sigmoid()
        return x


@functools.cache
def gated() -> Drawn:
    """An image of 12 × 16; gates of 48 channels, and of 6 × 8 and 3 × 4 positions."""
    torch.manual_seed(0)
    model, image = Gated().eval(), torch.rand(3, 12, 16)
    with torch.no_grad(), regard.capture(model, gates=True) as trace:
        model(image[None])
    return Drawn(trace, {"image": image, "title": "gates"})


@functools.cache
def machine() -> Drawn:
    """A neural Turing machine with two heads that read and one that writes."""
    torch.manual_seed(0)
    ntm = NTM(3, 2, slots=5, slot_width=4, read_heads=2)
    return Drawn(ntm(torch.randn(1, 6, 3), weights=True).trace, {})


@functools.cache
def reaction() -> Drawn:
    """RXNMapper on a Suzuki coupling: twelve calls of one layer."""
    from reactions import REACTIONS

    loaded = regard.cli.packaged.rxnmapper()
    encoded = loaded.encode(REACTIONS["suzuki"][0])
    with torch.no_grad(), regard.capture(loaded.model, tokens=encoded.tokens) as trace:
        loaded.model(**encoded.inputs)
    return Drawn(trace, {"title": "RXNMapper reads a reaction"})


@functools.cache
def hostile() -> Drawn:
    """Two layers of given weights over tokens that would break a careless page."""
    torch.manual_seed(0)
    size = len(HOSTILE)
    weights = torch.randn(2, 1, 3, size, size).mul(3).softmax(-1)
    words = Words.each(HOSTILE)
    return Drawn(_given(weights), {"words": words, "title": "</title><script>alert(5)</script>"})


def _given(weights: torch.Tensor) -> regard.Trace:
    """A trace of weights that somebody made, (layer, batch, head, query, key)."""

    class Given(nn.Module):
        def __init__(self, made: torch.Tensor) -> None:
            super().__init__()
            self.scores = made.log()

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.scores.softmax(-1) @ value

    model = nn.Sequential(*(Given(made) for made in weights))
    batch, heads, size = weights.shape[1:4]
    return regard.trace(model, torch.randn(batch, heads, size, 4)).with_tokens(HOSTILE)
