"""Options that need other options."""

from __future__ import annotations

from typing import Any

from regard.errors import RegardError


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
