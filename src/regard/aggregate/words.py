"""From pieces of words to words.

Attention *to* a word is the sum over its pieces, so that rows still sum to 1; attention *from* a
word is the mean over its pieces.

>>> import torch
>>> from regard.aggregate import Words
>>> words = Words.of("unbelievable news", [(0, 0), (0, 2), (2, 12), (13, 17), (0, 0)],
...                  ["[CLS]", "un", "##believable", "news", "[SEP]"])
>>> words.names
['[CLS]', 'unbelievable', 'news', '[SEP]']
>>> words.merge(torch.eye(5)[None, None])[0, 0, 1]
tensor([0., 1., 0., 0.])
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ShapeError

# Letters and digits, joined by an apostrophe or hyphen; anything else that is no space alone.
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Words:
    """The words of a text, and the pieces each one is made of."""

    names: list[str]
    pieces: list[int]  #: for each piece, the number of its word
    tokens: list[str]  #: the pieces themselves

    @classmethod
    def of(cls, text: str, offsets: Sequence[tuple[int, int]], tokens: Sequence[str]) -> Words:
        """Words of a text whose pieces lie at `offsets` (start, end); empty ones are special."""
        spans = [match.span() for match in _WORD.finditer(text)]
        names: list[str] = []
        pieces: list[int] = []
        last: int | None = None
        for (start, end), token in zip(offsets, tokens):
            inside = (
                [index for index, (left, right) in enumerate(spans) if left < end <= right]
                if end > start
                else []
            )
            here = inside[0] if inside else None
            if here is None or here != last:
                names.append(token if here is None else text[slice(*spans[here])])
            pieces.append(len(names) - 1)
            last = here
        return cls(names, pieces, list(tokens))

    @classmethod
    def each(cls, tokens: Sequence[str]) -> Words:
        """Every piece a word of its own."""
        return cls(list(tokens), list(range(len(tokens))), list(tokens))

    def merge(
        self, weights: Float[Tensor, "batch head piece piece"]
    ) -> Float[Tensor, "batch head word word"]:
        """Weights between pieces as weights between words."""
        size = len(self.pieces)
        if weights.shape[-2:] != (size, size):
            raise ShapeError(
                f"weights are {tuple(weights.shape[-2:])}, but the text has {size} pieces"
            )
        belongs = torch.nn.functional.one_hot(
            torch.tensor(self.pieces, device=weights.device), len(self.names)
        ).to(weights.dtype)  # (piece, word)
        share = belongs / belongs.sum(0)
        return share.T @ weights @ belongs
