"""What a tokenizer tells of its tokens: special ones, punctuation, numbers, where words begin."""

from __future__ import annotations

import unicodedata
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.aggregate.words.marks import marks_of, spelt
from regard.corpus.reading import digest_of

#: The categories of tokens, by number; `piece` continues a word.
CATEGORIES = ("special", "punctuation", "number", "word", "piece")
_SPECIAL, _PUNCTUATION, _NUMBER, _WORD, _PIECE = range(len(CATEGORIES))


class TokenTable:
    """Labels of tokens, looked up by their numbers.

    Where words begin is read from the marks of the vocabulary ("##", "▁", "Ġ"). [UNK] and [MASK]
    stand for words, and are not special.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        size = len(tokenizer)
        tokens = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(size)))]
        words = {tokenizer.unk_token_id, tokenizer.mask_token_id}
        special = torch.zeros(size, dtype=torch.bool)
        special[[number for number in tokenizer.all_special_ids if number not in words]] = True
        self.digest = digest_of(tokens)  #: of the vocabulary
        marks = marks_of(tokens) or "bytes"
        text, offsets = spelt(tokens, marks, special.tolist())
        pieces = [text[start:end] for start, end in offsets]
        self._begins = torch.tensor([piece[:1].isspace() for piece in pieces])
        category = torch.tensor([_category(piece.strip()) for piece in pieces])
        self._category = torch.where(special, _SPECIAL, category)

    def spelled(self, numbers: list[int]) -> list[str]:
        """Tokens as strings."""
        tokens: list[str] = self._tokenizer.convert_ids_to_tokens(numbers)
        return tokens

    def labels(
        self, tokens: Int[Tensor, "batch position"], real: Bool[Tensor, "batch position"]
    ) -> dict[str, Tensor]:
        """`special` and `punctuation` as marks, `word` and `category` as numbers; a special token
        and padding are of no word."""
        category = self._category[tokens]
        apart = (category == _SPECIAL) | (category == _PUNCTUATION)
        begins = self._begins[tokens] | apart
        begins[:, 0] = True
        begins[:, 1:] |= apart[:, :-1]
        category = torch.where(begins | apart, category, _PIECE)
        special = (category == _SPECIAL) & real
        return {
            "special": special,
            "punctuation": (category == _PUNCTUATION) & real,
            "word": torch.where(real & ~special, begins.cumsum(1) - 1, -1),
            "category": category,
        }


def _category(text: str) -> int:
    if text and all(unicodedata.category(character)[0] in "PS" for character in text):
        return _PUNCTUATION
    return _NUMBER if text.isnumeric() else _WORD
