"""The contract of vocabularies: text to token numbers and back, and the words over them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN

_SILENT = (PAD, BEGIN, END)


class Vocabulary(ABC):
    """Tokens and their numbers; the first four are padding, begin, end and unknown.

    `lower` says that texts are read in lower case, and so are written.
    """

    lower: bool

    @abstractmethod
    def __len__(self) -> int:
        """How many tokens there are, those four included."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The numbers of a text, without `BEGIN` and `END`."""

    @abstractmethod
    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers, up to the first `END`; an unknown word is written `<unk>`."""

    @abstractmethod
    def pieces(self, numbers: Iterable[int]) -> list[str]:
        """The tokens, one per number."""

    @abstractmethod
    def words(self, text: str) -> Words:
        """The words of a text over the pieces of `encode(text)`."""

    @abstractmethod
    def words_of(self, numbers: Sequence[int]) -> Words:
        """The words of numbers, one piece per number; `PAD`, `BEGIN` and `END` are special."""

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """What makes this vocabulary again, as JSON has it; `kind` names the class."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What makes it again and is no JSON."""

    def same_as(self, other: Vocabulary) -> bool:
        """Whether the other has the same tokens and reads texts in the same way."""
        mine, theirs = self.tensors(), other.tensors()
        return (
            self.header() == other.header()
            and mine.keys() == theirs.keys()
            and all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())
        )

    @classmethod
    @abstractmethod
    def restored(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Vocabulary:
        """The vocabulary of a header and its tensors."""


def spoken(numbers: Iterable[int]) -> list[int]:
    """Numbers up to the first `END`, without padding and `BEGIN`."""
    text_numbers = []
    for number in numbers:
        if number == END:
            break
        if number not in _SILENT:
            text_numbers.append(int(number))
    return text_numbers


def silent(numbers: Iterable[int]) -> list[bool]:
    """Which numbers are padding, `BEGIN` or `END`."""
    return [number in _SILENT for number in numbers]


_BYTE = re.compile("<0x[0-9A-F]{2}>")  # how sentencepiece spells what it has no piece for


def unknown_words(numbers: Sequence[int], words: Words) -> list[str]:
    """The words that have an unknown token, or one that was spelt by its bytes.

    >>> from regard.translate.vocabulary import WordVocabulary
    >>> vocabulary = WordVocabulary.train(["the cat sleeps"], size=10)
    >>> text = "the elephant sleeps"
    >>> unknown_words(vocabulary.encode(text), vocabulary.words(text))
    ['elephant']

    Args:
        numbers: a text as numbers, without its end.
        words: its words, over those.
    """
    strange = {
        word
        for number, token, word in zip(numbers, words.tokens, words.pieces)
        if number == UNKNOWN or _BYTE.fullmatch(token)
    }
    return [name for word, name in enumerate(words.names) if word in strange]
