"""The registry of laws: each promise of a mechanism, a block or an image mechanism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from regard.testing.subject import Subject

#: What a law is about.
Family = Literal["mechanism", "block", "image"]
_S = TypeVar("_S", bound=Subject)


@dataclass(frozen=True)
class Law:
    """A promise and its check; a failure shows the sentence."""

    name: str
    sentence: str
    check: Callable[[Any], None]
    compiles: bool = False  #: needs torch.compile or torch.export


#: Laws of each family by name, in the order in which they are checked.
LAWS: dict[Family, dict[str, Law]] = {"mechanism": {}, "block": {}, "image": {}}


def law(
    sentence: str, *families: Family, name: str | None = None, compiles: bool = False
) -> Callable[[Callable[[_S], None]], Callable[[_S], None]]:
    """Register a check for some families, under the name of the function unless one is given."""

    def register(check: Callable[[_S], None]) -> Callable[[_S], None]:
        key = name if name is not None else str(getattr(check, "__name__", check))
        for family in families:
            assert key not in LAWS[family], f"two laws of {family} are named {key}"
            LAWS[family][key] = Law(key, sentence, check, compiles)
        return check

    return register
