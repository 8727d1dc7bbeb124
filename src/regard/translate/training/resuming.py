"""What may not change when a run is resumed, and what it is told then."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from regard.errors import RegardError
from regard.translate.config import Config
from regard.translate.training.state import Position

#: Settings of `[training]` that say where in the data a step is, what the optimiser remembers, or
#: what the best so far are the best of.
_HELD = (
    "training.seed",
    "training.batch_tokens",
    "training.batch_sentences",
    "training.accumulate",
    "training.optimiser.name",
    "training.validation.metric",
    "training.validation.sentences",
)


def check_settings(before: Config, now: Config) -> None:
    """Refuse to go on with another model, order of data, optimiser, metric or frozen part."""
    held = [(config.vectors.frozen, *config.vectors.files) for config in (before, now)]
    if held[0] != held[1]:
        raise RegardError(
            f"the run began with {before.vectors} and cannot be resumed with {now.vectors}"
        )
    held_parts = (
        ("model",) if now.training.start else ("vocabulary", "model")
    )  # start brings its own
    parts = [f"{part}.{key}" for part in held_parts for key in vars(getattr(before, part))]
    for name in (*_HELD, *parts):
        values = [attrgetter(name)(config) for config in (before, now)]
        if values[0] != values[1]:
            raise RegardError(
                f"{name} is {values[1]!r}, but the run began with {values[0]!r}: it cannot be "
                "resumed with another one"
            )


def changed_settings(before: Config, now: Config) -> list[str]:
    """A line for each setting that is another one than the run had."""
    was, is_now = (_flat(config.table()) for config in (before, now))
    return [
        f"{name} is now {is_now[name]!r}; the run had {was[name]!r}"
        for name in was
        if was[name] != is_now[name]
    ]


def _flat(table: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """The settings of nested tables by their full names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = (
            _flat(value, f"{place}{key}.") if isinstance(value, Mapping) else {place + key: value}
        )
        found |= inner
    return found


def check_surroundings(before: Position, now: Position) -> None:
    """Refuse to go on with other data or other processes."""
    if now.ranks != before.ranks:
        raise RegardError(
            f"the run began with {before.ranks} processes and cannot be resumed with {now.ranks}"
        )
    if now.data != before.data:
        raise RegardError("the training pairs are not those that the run began with")
    if before.valid is not None and now.valid != before.valid:
        raise RegardError("the validation pairs are not those that the run began with")
