"""What several pictures let one choose: a way through the layers, an example of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from regard.aggregate import mean_attention, relevance, rollout
from regard.errors import RegardError


def way_of(how: str) -> Callable[..., Any]:
    """An aggregation over layers, by name."""
    ways: dict[str, Callable[..., Any]] = {
        "rollout": rollout,
        "relevance": relevance,
        "mean": mean_attention,
    }
    if how not in ways:
        raise RegardError(f"how={how!r}, expected one of {', '.join(ways)}")
    return ways[how]


def checked_example(example: int, batch: int) -> int:
    """A place in a batch."""
    if not -batch <= example < batch:
        raise RegardError(f"example={example}, expected from 0 to {batch - 1}")
    return example


def tokens_of(tokens: Any, example: int) -> Sequence[str] | None:
    """One example's tokens, where every example has its own."""
    if not tokens or isinstance(tokens[0], str):
        return tokens or None
    chosen: Sequence[str] = tokens[example]
    return chosen
