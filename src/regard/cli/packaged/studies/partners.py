"""The model of `experiments/studies/pairwise_convolution.py`: each position fetches a digit."""

from __future__ import annotations

import functools
import re

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.aggregate import Words
from regard.cli.packaged.base import EncodedText, TextModel
from regard.cli.packaged.studies.store import load
from regard.errors import RegardError

NAMES = "ABCDEFGHIJKLMNOP"
POSITIONS, DIGITS, WIDTH = len(NAMES), 10, 48
EXAMPLE = ("AC1 BA2 CB3 DH4 EP5 FE6 GG7 HD8 IJ9 JK0 KI1 LM2 MN3 NL4 OF5 PO6", "AC1", "CB3")


class Embedding(nn.Module):
    """A position's name, its partner's name and its digit, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Embedding(number, WIDTH // 3) for number in (POSITIONS, POSITIONS, DIGITS)
        )

    def forward(
        self, inputs: Int[Tensor, "batch position 3"]
    ) -> Float[Tensor, "batch position width"]:
        """Features of each position."""
        return torch.cat([part(inputs[..., n]) for n, part in enumerate(self.parts)], -1)


class PartnerModel(nn.Module):
    """Embeddings, a module that mixes positions, and scores of digits."""

    def __init__(self, embed: Embedding, mixing: nn.Module) -> None:
        super().__init__()
        self.embed, self.mixing = embed, mixing
        self.to_scores = nn.Linear(WIDTH, DIGITS)

    def forward(
        self, inputs: Int[Tensor, "batch position 3"]
    ) -> Float[Tensor, "batch position digit"]:
        """Scores of the partner's digit, at each position."""
        scores: Tensor = self.to_scores(self.mixing(self.embed(inputs)))
        return scores


class WeightedPairs(nn.Module):
    """y_i = Σ_j softmax_j(x_iᵀ M x_j) W x_j."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.fetch = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(
        self, x: Float[Tensor, "batch position width"]
    ) -> Float[Tensor, "batch position width"]:
        """What each position fetches from all."""
        fetched: Tensor = (x @ self.score @ x.mT).softmax(-1) @ self.fetch(x)
        return fetched


def encode(text: str) -> EncodedText:
    """Words such as AC1: the name A, the partner C, the digit 1."""
    words = text.upper().split()
    wrong = [word for word in words if not re.fullmatch(r"[A-P][A-P]\d", word)]
    if wrong or not words:
        raise RegardError(
            f"{' '.join(wrong[:3]) or repr(text)}: expected words such as AC1, which are a "
            "name from A to P, the name of a partner, and a digit"
        )
    numbers = [[NAMES.index(word[0]), NAMES.index(word[1]), int(word[2])] for word in words]
    return EncodedText({"inputs": torch.tensor([numbers])}, words, Words.each(words))


def answer(scores: Float[Tensor, "batch position digit"]) -> str:
    """The digit of each position's partner."""
    return f"digits of the partners: {' '.join(map(str, scores[0].argmax(-1).tolist()))}"


@functools.cache
def partners() -> TextModel:
    """One attention by which each position finds its partner."""
    model = PartnerModel(Embedding(), WeightedPairs())
    return TextModel("Partners", load("pairwise_convolution", model), encode, answer=answer)
