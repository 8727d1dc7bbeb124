"""A law of the contract, and the list of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from regard.testing.subject import Subject


@dataclass(frozen=True)
class Law:
    """Something every mechanism must satisfy; the sentence is what a failure says."""

    name: str
    sentence: str
    check: Callable[[Subject], None]
    compiles: bool = False  #: needs torch.compile or torch.export


LAWS: dict[str, Law] = {}


def law(
    sentence: str, *, compiles: bool = False, into: dict[str, Law] = LAWS
) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Enter a check function into a list under its own name."""

    def enter(check: Callable[[Subject], None]) -> Callable[[Subject], None]:
        name = getattr(check, "__name__", str(check))
        into[name] = Law(name, sentence, check, compiles)
        return check

    return enter
