"""The model of `experiments/studies/attention_explanation.py`: judges a review by one attention."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.aggregate import Words
from regard.cli.packaged.base import EncodedText, TextModel, likeliest
from regard.cli.packaged.studies.store import load
from regard.errors import RegardError
from regard.mechanisms import MultiHead

SUMMARY = "[CLS]"
GOOD = ("good", "great", "lovely", "superb")
BAD = ("bad", "awful", "dreadful", "poor")
PLAIN = (
    *("the", "a", "film", "plot", "actor", "scene", "music", "ending", "was", "is", "and", "with"),
    *("of", "in", "we", "saw", "it", "one", "had", "very"),
)
VOCABULARY = (SUMMARY, *GOOD, *BAD, *PLAIN)
WIDTH = 32
EXAMPLE = ("[CLS] we saw the film and the music was lovely in one scene", "[CLS]", "lovely")


class Recurrent(nn.Module):
    """A bidirectional LSTM: each position's features know all words."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Float[Tensor, "batch word width"]) -> Float[Tensor, "batch word width"]:
        """Features of each word among the others."""
        features: Tensor = self.lstm(x)[0]
        return features


class Reader(nn.Module):
    """Embeddings, an encoder, one attention from the summary token, and scores of two classes.

    Args:
        encoder: a module of (batch, word, width): `Recurrent()`, or `nn.Identity()`, which leaves
            each position with its own word.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(VOCABULARY), WIDTH)
        self.encoder = encoder
        self.attention = MultiHead(WIDTH, 1, bias=False)
        self.classes = nn.Linear(WIDTH, 2)

    def forward(self, words: Int[Tensor, "batch word"]) -> Float[Tensor, "batch 2"]:
        """Scores of bad and good, from what the first position attends to."""
        features = self.encoder(self.embed(words))
        scores: Tensor = self.classes(self.attention(features).output[:, 0])
        return scores

    def answer(
        self, features: Float[Tensor, "batch word width"], weights: Float[Tensor, "batch word"]
    ) -> Float[Tensor, "batch 2"]:
        """Probabilities of bad and good, had the first position these weights."""
        values = self.attention.to_value(features)
        mixed = torch.einsum("bk,bkw->bw", weights, values)
        probabilities: Tensor = self.classes(self.attention.to_output(mixed)).softmax(-1)
        return probabilities


def encode(text: str) -> EncodedText:
    """Words of the little language of reviews; the summary token comes first."""
    words = text.split()
    if words[:1] != [SUMMARY]:
        words = [SUMMARY, *words]
    unknown = [word for word in words if word not in VOCABULARY]
    if unknown or len(words) < 2:
        raise RegardError(
            f"{text!r:.60}: expected words of this model's own"
            + (f", not {', '.join(unknown[:5])}" if unknown else "")
            + f": {' '.join(VOCABULARY[1:])}"
        )
    numbers = torch.tensor([[VOCABULARY.index(word) for word in words]])
    special = [word == SUMMARY for word in words]
    return EncodedText({"words": numbers}, words, Words.each(words, special))


def answer(scores: Float[Tensor, "batch 2"]) -> str:
    """The verdict on the review."""
    return f"the review is {likeliest(scores[0], ('bad', 'good'))}"


@functools.cache
def reader() -> TextModel:
    """A bidirectional LSTM with one attention on top."""
    model = load("attention_explanation", Reader(Recurrent()))
    return TextModel("Reader", model, encode, answer=answer)
