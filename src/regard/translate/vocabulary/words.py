"""A vocabulary of whole words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from regard.aggregate import Words
from regard.errors import RegardError
from regard.translate.tokens import NAMES, UNKNOWN
from regard.translate.vocabulary.contract import Vocabulary, silent, spoken
from regard.translate.vocabulary.spacing import Spacing
from regard.translate.vocabulary.tokenise import detokenise, tidy, token_spans, tokenise

Cut = Literal["words", "spaces"]


class WordVocabulary(Vocabulary):
    """Words by number, the most frequent first; what is not among them is unknown.

    What is decoded is encoded to the same numbers again, where no word is unknown. Lower case and
    the white space of the text do not come back.

    Args:
        entries: the words, without the four that every vocabulary begins with.
        lower: texts are read in lower case.
        cut: how a text is cut: "words" (punctuation and clitics apart), or "spaces" where it
            already has a space between all tokens.
        spacing: how text is written; the English way when None.

    >>> vocabulary = WordVocabulary.train(["Je t'aime.", "Je mange."], size=100, lower=True)
    >>> numbers = vocabulary.encode("Je t'aime.")
    >>> vocabulary.pieces(numbers)
    ['je', "t'", 'aime', '.']
    >>> vocabulary.decode(numbers)
    "je t'aime."
    >>> vocabulary.encode("Je ris.")
    [5, 3, 4]
    """

    def __init__(
        self,
        entries: Iterable[str],
        *,
        lower: bool = False,
        cut: Cut = "words",
        spacing: Spacing | None = None,
    ) -> None:
        self.entries = [*NAMES, *entries]
        self.lower = lower
        self.cut = cut
        self.spacing = Spacing() if spacing is None else spacing
        self._numbers = {
            word: number for number, word in enumerate(self.entries) if number >= len(NAMES)
        }
        if cut not in ("words", "spaces"):
            raise RegardError(f"cut={cut!r}, expected 'words' or 'spaces'")
        if len({*self.entries}) != len(self.entries):
            twice = [word for word, count in Counter(self.entries).items() if count > 1]
            raise RegardError(f"these words are in the vocabulary more than once: {twice[:5]}")

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        *,
        size: int,
        lower: bool = False,
        least: int = 1,
        cut: Cut = "words",
    ) -> WordVocabulary:
        """The most frequent words of some sentences; of equally frequent ones the first by code.

        Args:
            sentences: the texts; those of both languages for a joint vocabulary.
            size: maximum number of entries, with the first four.
            lower: read in lower case.
            least: words that occur less often are left out.
            cut: how a text is cut, "words" or "spaces".
        """
        if size <= len(NAMES):
            raise RegardError(f"size={size}, expected more than {len(NAMES)}")
        empty = cls([], lower=lower, cut=cut)
        texts = [empty._read(sentence) for sentence in sentences]
        counts = Counter(word for text in texts for word in empty._cut(text))
        for name in NAMES:
            counts.pop(name, None)
        order = sorted(counts, key=lambda word: (-counts[word], word))
        chosen = [word for word in order if counts[word] >= least][: size - len(NAMES)]
        spacing = None
        if cut == "words":
            spacing = Spacing.learned((text, token_spans(text)) for text in texts)
        return cls(chosen, lower=lower, cut=cut, spacing=spacing)

    def __len__(self) -> int:
        return len(self.entries)

    def encode(self, text: str) -> list[int]:
        return [self._numbers.get(word, UNKNOWN) for word in self._cut(self._read(text))]

    def decode(self, numbers: Iterable[int]) -> str:
        tokens = self.pieces(spoken(numbers))
        return " ".join(tokens) if self.cut == "spaces" else detokenise(tokens, self.spacing)

    def pieces(self, numbers: Iterable[int]) -> list[str]:
        return [self.entries[number] for number in numbers]

    def words(self, text: str) -> Words:
        return Words.each(self._cut(self._read(text)))

    def words_of(self, numbers: Sequence[int]) -> Words:
        pieces = self.pieces(numbers)
        special = frozenset(index for index, flag in enumerate(silent(numbers)) if flag)
        return Words(list(pieces), list(range(len(pieces))), pieces, special)

    def header(self) -> dict[str, Any]:
        return {
            "kind": "words",
            "words": self.entries[len(NAMES) :],
            "lower": self.lower,
            "cut": self.cut,
            "space before": dict(self.spacing.before),
            "space after": dict(self.spacing.after),
        }

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def restored(cls, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WordVocabulary:
        spacing = Spacing(header["space before"], header["space after"])
        return cls(header["words"], lower=header["lower"], cut=header["cut"], spacing=spacing)

    def __repr__(self) -> str:
        return f"WordVocabulary({len(self)} entries, lower={self.lower}, cut={self.cut!r})"

    def _read(self, text: str) -> str:
        return tidy(text.lower() if self.lower else text)

    def _cut(self, text: str) -> list[str]:
        return text.split() if self.cut == "spaces" else tokenise(text)
