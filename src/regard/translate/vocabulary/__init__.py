"""Text as numbers: whole words, or pieces of words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.errors import RegardError
from regard.translate.vocabulary.contract import Vocabulary
from regard.translate.vocabulary.pieces import PieceVocabulary
from regard.translate.vocabulary.spacing import Spacing
from regard.translate.vocabulary.tokenise import detokenise, tidy, tokenise
from regard.translate.vocabulary.words import WordVocabulary

_KINDS: dict[str, type[Vocabulary]] = {"words": WordVocabulary, "pieces": PieceVocabulary}


def vocabulary_from(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Vocabulary:
    """The vocabulary whose `header()` and `tensors()` these are."""
    kind = header.get("kind")
    if kind not in _KINDS:
        raise RegardError(f"a vocabulary of kind {kind!r}, expected one of {', '.join(_KINDS)}")
    try:
        return _KINDS[kind].restored(header, tensors)
    except KeyError as error:
        raise RegardError(f"the vocabulary of kind {kind!r} lacks {error}") from error


__all__ = [
    "PieceVocabulary",
    "Spacing",
    "Vocabulary",
    "WordVocabulary",
    "detokenise",
    "tidy",
    "tokenise",
    "vocabulary_from",
]
