"""The model of `experiments/studies/simplified_blocks.py`: the next character of a manual."""

from __future__ import annotations

import functools
import string

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.aggregate import Words
from regard.blocks import AttentionBlock, Stack, sas_block
from regard.cli.packaged.base import EncodedText, TextModel, likeliest
from regard.cli.packaged.studies.store import load
from regard.errors import RegardError

ALPHABET = "\n " + string.ascii_letters + string.digits + string.punctuation
WIDTH, HEADS, DEPTH, CONTEXT = 64, 4, 6, 64
EXAMPLE = ("the value of the expression", "value", "the")


class CharacterModel(nn.Module):
    """Embeddings of characters and positions, a stack, and scores of the next character."""

    def __init__(self, blocks: list[AttentionBlock]) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.stack = Stack(blocks, norm=nn.RMSNorm(WIDTH))
        self.to_scores = nn.Linear(WIDTH, len(ALPHABET))

    def embedded(
        self, text: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position width"]:
        """What enters the stack."""
        x: Tensor = self.characters(text) + self.positions.weight[: text.shape[1]]
        return x

    def forward(
        self, text: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position character"]:
        """Scores of the character after each position."""
        scores: Tensor = self.to_scores(self.stack(self.embedded(text), causal=True).output)
        return scores


def sas_blocks() -> list[AttentionBlock]:
    """Simplified blocks, as in the paper: values in the first, and gains of 1 / √depth."""
    gain = DEPTH**-0.5
    return [sas_block(WIDTH, HEADS, values=layer == 0, gain=gain) for layer in range(DEPTH)]


def encode(text: str) -> EncodedText:
    """The characters of a text, of which words are made."""
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown or not 0 < len(text) <= CONTEXT:
        raise RegardError(
            f"{text!r:.60}: expected at most {CONTEXT} characters of ASCII"
            + (f", not {' '.join(unknown[:5])}" if unknown else f", not {len(text)}")
        )
    tokens = list(text)
    offsets = [(n, n + 1) for n in range(len(text))]
    numbers = torch.tensor([[ALPHABET.index(character) for character in text]])
    return EncodedText({"text": numbers}, tokens, Words.of(text, offsets, tokens))


def answer(scores: Float[Tensor, "batch position character"]) -> str:
    """The character after the text."""
    return f"next character: {likeliest(scores[0, -1], [repr(name) for name in ALPHABET])}"


@functools.cache
def characters() -> TextModel:
    """Six simplified blocks that continue a text letter by letter."""
    model = load("simplified_blocks", CharacterModel(sas_blocks()))
    return TextModel("Characters", model, encode, answer=answer)
