"""Remarks on standard error about words that a model does not know."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.cli.terminal import label
from regard.translate.alignment import Sentence
from regard.translate.vocabulary import Vocabulary
from regard.translate.vocabulary.contract import unknown_words

_NAMED = 5
_MANY = 0.2  #: share of unknown words that is rare in a language the model was trained on


def report_unknown_words(texts: Iterable[str], vocabulary: Vocabulary) -> None:
    """Name the words of source texts that the model does not know."""
    unknown: list[str] = []
    count = 0
    for text in texts:
        words = vocabulary.words(text)
        unknown += unknown_words(vocabulary.encode(text), words)
        count += len(words.names)
    if not unknown:
        return
    distinct = list(dict.fromkeys(map(label, unknown)))
    more = len(distinct) - _NAMED
    names = ", ".join(distinct[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    kinds = f" ({len(distinct)} different)" if len(distinct) < len(unknown) else ""
    _remark(
        f"{len(unknown)} of {count} words{kinds} are unknown to the model and may be "
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
    _remark(f"{checkpoint} does not know {unknown}; are the files the right way round?")


def _unknown_share(texts: Sequence[str], vocabulary: Vocabulary) -> float:
    sentences = [Sentence.spaced(text, vocabulary) for text in texts]
    unknown = sum(len(unknown_words(each.numbers, each.words)) for each in sentences)
    return unknown / max(1, sum(len(each.words.names) for each in sentences))


def _remark(text: str) -> None:
    print(f"regard: {text}", file=sys.stderr)
