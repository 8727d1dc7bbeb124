"""Tokens for positions: one list for the batch, or a list per example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import RegardError

Tokens = Sequence[str] | Sequence[Sequence[str]]


def checked_tokens(tokens: Any, caller: str) -> list[Any]:
    """The tokens as lists; raises if they are anything else.

    Args:
        tokens: a list of tokens, one per position; or a list of such lists, one per example, all
            as long as the padded batch.
        caller: the beginning of the error.
    """
    if _words(tokens):
        return list(tokens)
    if not isinstance(tokens, list | tuple) or not all(_words(example) for example in tokens):
        raise RegardError(
            f"{caller}: {tokens!r:.60}, expected a list of words, one for each position, or a list "
            "of such lists, one for each example of the batch"
        )
    lengths = sorted({len(example) for example in tokens})
    if len(lengths) > 1:
        raise RegardError(
            f"{caller}: lists of {lengths[0]} to {lengths[-1]} words; examples of a batch have as "
            "many positions each, so name those of the padding too"
        )
    return [list(example) for example in tokens]


def fit(tokens: Sequence[Any], batch: int, positions: int) -> bool:
    """Whether the number of tokens fits a batch."""
    if not nested(tokens):
        return len(tokens) == positions
    return len(tokens) == batch and len(tokens[0]) == positions


def nested(tokens: Sequence[Any]) -> bool:
    """Whether there is a list per example."""
    return bool(tokens) and not isinstance(tokens[0], str)


def count(tokens: Sequence[Any]) -> str:
    """The number of tokens as text."""
    return f"{len(tokens)} × {len(tokens[0])}" if nested(tokens) else f"{len(tokens)}"


def _words(tokens: Any) -> bool:
    return isinstance(tokens, list | tuple) and all(isinstance(word, str) for word in tokens)
