"""Options that go with others."""

from __future__ import annotations

from typing import Any

from regard.errors import RegardError


def check_needed(needed: str, given: object, said: dict[str, Any]) -> None:
    """Refuse options that do nothing without another one.

    Args:
        needed: the other one, such as "--gold".
        given: its value; None where it was not said.
        said: the options that need it, with their values.
    """
    for option, value in said.items():
        if given is None and value is not None:
            raise RegardError(
                f"{option} {value}: there is no {needed}, without which it does nothing"
            )
