"""What is said of words that a model does not know, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from regard.cli.terminal import label
from regard.translate.alignment import Sentence
from regard.translate.vocabulary import Vocabulary
from regard.translate.vocabulary.unknown_words import unknown_words

_NAMED = 5
_MANY = 0.2  #: a share that a language which the model was trained on seldom has


def tell_unknown(texts: Iterable[str], vocabulary: Vocabulary) -> None:
    """Name words of texts that are to be translated and that the model does not know."""
    found: list[str] = []
    count = 0
    for text in texts:
        words = vocabulary.words(text)
        found += unknown_words(vocabulary.encode(text), words)
        count += len(words.names)
    if not found:
        return
    different = list(dict.fromkeys(map(label, found)))
    more = len(different) - _NAMED
    named = ", ".join(different[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    kinds = f", {len(different)} different" if len(different) < len(found) else ""
    _say(
        f"the model has no tokens of its own for {len(found)} of {count} words{kinds}, and may get "
        f"them wrong: {named}"
    )


def tell_strange_languages(checkpoint: Path, sides: Iterable[tuple[Path, list[Sentence]]]) -> None:
    """Say so where a good part of the words of a file is unknown to a model.

    Args:
        checkpoint: the file of the model.
        sides: the file of the sources and that of the targets, with their sentences.
    """
    shares = [(path, _share(sentences)) for path, sentences in sides]
    if max(share for _, share in shares) < _MANY:
        return
    said = " and ".join(f"{100 * share:.0f} % of the words of {path}" for path, share in shares)
    _say(f"{checkpoint} does not know {said}; are the files the right way round?")


def _share(sentences: list[Sentence]) -> float:
    unknown = sum(len(unknown_words(one.numbers, one.words)) for one in sentences)
    return unknown / max(1, sum(len(one.words.names) for one in sentences))


def _say(text: str) -> None:
    print(f"regard: {text}", file=sys.stderr)
