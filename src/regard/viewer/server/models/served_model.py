"""What the server needs to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from regard.viewer.scene import Scene
from regard.viewer.server.models.generation import Rows


@dataclass(frozen=True)
class PromptTokens:
    """The prompt of a generation, before its first step."""

    tokens: list[str]
    special: list[bool]


@dataclass(frozen=True)
class Step:
    """One step of a generation: the token it chose, new rows of each site, by name, and the most
    probable tokens with their probabilities, where they are known."""

    token: str
    rows: dict[str, Rows]
    likely: Sequence[tuple[str, float]] = ()


class Draft(NamedTuple):
    """A translation so far: its text, and the attention that it came from."""

    text: str
    scene: Scene


@dataclass(frozen=True)
class ServedModel:
    """A model that was named at start, and what it can be asked.

    `look` takes a text, or the bytes of a PNG or JPEG file, and runs the model. `generate` takes a
    prompt and the number of tokens to add; it yields `PromptTokens`, a `Step` for each token, and
    finally the `Scene` of the whole. `translate` takes a text and the maximum number of tokens; it
    yields a `Draft` after every step, which may revise the one before; the last is the finished
    translation.
    """

    name: str
    title: str
    kind: Literal["text", "image"]
    look: Callable[[Any], Scene]
    generate: Callable[[str, int], Generator[PromptTokens | Step | Scene]] | None = None
    translate: Callable[[str, int], Generator[Draft]] | None = None
    tokens: Callable[[str], int] | None = None  #: of a text, counted without running the model
    example: str = ""

    def shown(self) -> dict[str, Any]:
        """The model as the page is told of it."""
        return {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "generates": self.generate is not None,
            "translates": self.translate is not None,
            "example": self.example,
        }
