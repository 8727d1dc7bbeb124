"""The model of `experiments/studies/common_divisors.py`: what divides two numbers."""

from __future__ import annotations

import functools
import re

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.aggregate import Words
from regard.blocks import EncoderBlock, FeedForward, PreNorm, Stack
from regard.cli.packaged.base import EncodedText, TextModel, likeliest
from regard.cli.packaged.studies.store import load
from regard.errors import RegardError
from regard.mechanisms import MultiHead

BASE, DIGITS = 10, 4  # digits of a number, the first ones may be 0
LARGEST = 100  # divisors from 1; class 0 is a larger one
WIDTH, HEADS, LAYERS = 64, 4, 2
ANSWER = "="
EXAMPLE = ("= 1236 4578", "=", "6")


class DivisorModel(nn.Module):
    """An encoder over the digits of two numbers; the answer is read at the first position."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = nn.Embedding(BASE + 1, WIDTH)  # the last one is the answer's
        self.positions = nn.Parameter(torch.randn(1 + 2 * DIGITS, WIDTH) * 0.5)
        blocks = [
            EncoderBlock(
                PreNorm(WIDTH, MultiHead(WIDTH, HEADS)), PreNorm(WIDTH, FeedForward(WIDTH))
            )
            for _ in range(LAYERS)
        ]
        self.stack = Stack(blocks, norm=nn.LayerNorm(WIDTH))
        self.to_scores = nn.Linear(WIDTH, LARGEST + 1)

    def forward(self, digits: Int[Tensor, "batch position"]) -> Float[Tensor, "batch divisor"]:
        """Scores of each divisor."""
        x = self.stack(self.digits(digits) + self.positions).output
        scores: Tensor = self.to_scores(x[:, 0])
        return scores


def digits_of(numbers: Int[Tensor, "batch operand"]) -> Int[Tensor, "batch position"]:
    """The answer's token, then the digits of each operand, the most significant first."""
    powers = BASE ** torch.arange(DIGITS - 1, -1, -1)
    digits = (numbers[:, :, None] // powers % BASE).flatten(1)
    return torch.cat([torch.full((len(numbers), 1), BASE), digits], 1)


def encode(text: str) -> EncodedText:
    """Two numbers, each of at most four digits; there may be a sign of equality before them."""
    match = re.fullmatch(r"\s*=?\s*(\d+)[\s,]+(\d+)\s*", text, re.ASCII)
    numbers = match.groups() if match else ()
    if not numbers or any(len(n) > DIGITS or not int(n) for n in numbers):
        raise RegardError(f"{text!r:.60}: expected two numbers from 1 to {BASE**DIGITS - 1}")
    inputs = digits_of(torch.tensor([[int(number) for number in numbers]]))
    tokens = [ANSWER, *"".join(number.zfill(DIGITS) for number in numbers)]
    return EncodedText({"digits": inputs}, tokens, Words.each(tokens))


def answer(scores: Float[Tensor, "batch divisor"]) -> str:
    """The greatest common divisor of the two numbers."""
    names = [f"above {LARGEST}", *map(str, range(1, LARGEST + 1))]
    return f"greatest common divisor: {likeliest(scores[0], names)}"


@functools.cache
def divisors() -> TextModel:
    """A small encoder that learned the divisors of its base."""
    return TextModel("Divisors", load("common_divisors", DivisorModel()), encode, answer=answer)
