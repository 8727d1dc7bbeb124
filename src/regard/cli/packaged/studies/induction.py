"""The model of `experiments/studies/induction.py`: letters, attention, and nothing else."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.aggregate import Words
from regard.cli.packaged.base import EncodedText, TextModel, likeliest
from regard.cli.packaged.studies.store import load
from regard.errors import RegardError
from regard.mechanisms import MultiHead, RelativeBias

LETTERS = string.ascii_lowercase
HEADS = (4, 1)  # of the layers of the model that is kept
EXAMPLE = ("u n c o p y r i g h t a b l e u n c o p y r i g", "g#2", "h")


class AttentionOnly(nn.Module):
    """Layers of attention over letters, without norms and feed-forward parts.

    So the scores of the next letter are a sum over paths through the heads, as in Elhage et al.
    2021, "A mathematical framework for transformer circuits". Positions are a learned bias for each
    distance: what a head compares are letters, and what earlier heads wrote.

    Args:
        heads: how many heads each layer has.
        width: features of the residual stream.
    """

    def __init__(self, heads: Sequence[int] = HEADS, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), width)
        self.layers = nn.ModuleList(
            MultiHead(width, number, bias=False, position=RelativeBias(number)) for number in heads
        )
        self.to_scores = nn.Linear(width, len(LETTERS), bias=False)
        nn.init.normal_(self.embed.weight, std=0.5)

    def forward(
        self, letters: Int[Tensor, "batch position"]
    ) -> Float[Tensor, "batch position letter"]:
        """Scores of the letter after each position."""
        x = self.embed(letters)
        for layer in self.layers:
            x = x + layer(x, causal=True).output
        scores: Tensor = self.to_scores(x)
        return scores


def encode(text: str) -> EncodedText:
    """The letters of a text; spaces between them are left out."""
    letters = [letter for letter in text.lower() if not letter.isspace()]
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown or not letters:
        raise RegardError(
            f"{text!r:.60}: expected letters from a to z"
            + (f", not {' '.join(unknown)}" if unknown else "")
        )
    numbers = torch.tensor([[LETTERS.index(letter) for letter in letters]])
    return EncodedText({"letters": numbers}, letters, Words.each(letters))


def answer(scores: Float[Tensor, "batch position letter"]) -> str:
    """The letter after the text."""
    return f"next letter: {likeliest(scores[0, -1], LETTERS)}"


@functools.cache
def induction() -> TextModel:
    """Two layers of attention that continue what repeats: 4 heads, then 1."""
    return TextModel("Induction", load("induction", AttentionOnly()), encode, answer=answer)
