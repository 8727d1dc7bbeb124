"""Remarks on standard error about words that a model does not know."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from regard.cli.terminal import label
from regard.translate.alignment import Sentence
from regard.translate.vocabulary import Vocabulary
from regard.translate.vocabulary.contract import unknown_words

_NAMED = 5
_MANY = 0.2  #: share of unknown words that is rare in a language the model was trained on


class UnknownWords:
    """Words of source texts that a model does not know, counted while the texts pass."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.counts: Counter[str] = Counter()
        self.words = 0

    def counted(self, texts: Iterable[str]) -> Iterator[str]:
        """The texts as they are."""
        for text in texts:
            words = self.vocabulary.words(text)
            self.counts.update(map(label, unknown_words(self.vocabulary.encode(text), words)))
            self.words += len(words.names)
            yield text

    def report(self) -> None:
        """Name the first of them, if there are any."""
        if not self.counts:
            return
        more = len(self.counts) - _NAMED
        names = ", ".join(islice(self.counts, _NAMED)) + (f" and {more} more" if more > 0 else "")
        total = self.counts.total()
        kinds = f" ({len(self.counts)} different)" if len(self.counts) < total else ""
        remark(
            f"{total} of {self.words} words{kinds} are unknown to the model and may be "
            f"translated wrongly: {names}"
        )


def warn_of_unknown_language(
    checkpoint: Path, sides: Iterable[tuple[Path, Sequence[str], Vocabulary]]
) -> None:
    """Say so if many words of a file are unknown to a model.

    Args:
        checkpoint: the file of the model.
        sides: source and target: the file, its sentences, and the model's vocabulary.
    """
    shares = [(path, _unknown_share(texts, vocabulary)) for path, texts, vocabulary in sides]
    if max(share for _, share in shares) < _MANY:
        return
    unknown = " and ".join(f"{100 * share:.0f} % of the words of {path}" for path, share in shares)
    remark(f"{checkpoint} does not know {unknown}; are the files the right way round?")


def _unknown_share(texts: Sequence[str], vocabulary: Vocabulary) -> float:
    sentences = [Sentence.spaced(text, vocabulary) for text in texts]
    unknown = sum(len(unknown_words(each.numbers, each.words)) for each in sentences)
    return unknown / max(1, sum(len(each.words.names) for each in sentences))


def remark(text: str) -> None:
    """Say something on standard error, on one line."""
    print(f"regard: {label(text)}", file=sys.stderr)
