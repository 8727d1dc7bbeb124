"""Checks of options, whose errors name the option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.errors import RegardError


def check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a value that is none of the choices; None is an option that was not given."""
    if value is not None and value not in choices:
        raise RegardError(f"{option} {value}, expected one of {', '.join(map(str, choices))}")


def check_needed(needed: str, value: object, dependents: dict[str, Any]) -> None:
    """Refuse options that have no effect without another one.

    Args:
        needed: the option they need, such as "--gold".
        value: its value; None if it was not given.
        dependents: the options that need it, with their values.
    """
    for option, setting in dependents.items():
        if value is None and setting is not None:
            raise RegardError(f"{option} {setting} has no effect without {needed}")
