"""What the server accepts, and how it refuses the rest."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Sizes, lengths and times beyond which a request is refused."""

    characters: int = 20_000  #: of a text
    tokens: int = 1024  #: of a text as the model cuts it
    new_tokens: int = 200  #: that a generation may add
    positions: int = 400  #: of prompt and new tokens together
    body_bytes: int = 256 * 1024  #: of a JSON request
    image_bytes: int = 12 * 1024**2  #: of an image file
    image_pixels: int = 24_000_000  #: of an image
    queue: int = 16  #: requests that may wait for the models
    tile_queue: int = 1024  #: tiles and rows that may wait
    connections: int = 768  #: open at a time
    seconds: int | float = 60  #: from the acceptance of a request to its answer
    head_seconds: int | float = 10  #: that the head of a request may take to come
    step_seconds: int | float = 5  #: that a generation waits for who does not take its steps
    traces: int = 32  #: that are kept; the one not asked for longest is dropped
    trace_bytes: int = 1024**3  #: of kept traces together
    tile_bytes: int = 192 * 1024**2  #: of kept tiles together
    packed_weights: int = 6_000_000  #: of a trace that is sent whole; a larger one goes in tiles
    packed_steps: int = 48_000_000  #: the same of a generation, whose steps are shown one by one

    def shown(self) -> dict[str, Any]:
        """The limits as the page is told of them."""
        return asdict(self)


class Refused(Exception):
    """A request that is not answered: a status, a code for programs and a message for people."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        limit: int | float | None = None,
        got: int | float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.limit, self.got = limit, got
        self.headers = headers or {}

    def shown(self) -> dict[str, Any]:
        """The body of the answer."""
        error = {"code": self.code, "message": self.message, "limit": self.limit, "got": self.got}
        return {"error": error}


def not_found(what: str) -> Refused:
    return Refused(404, "not_found", f"there is no {what}")


def too_long(what: str, got: int, limit: int, unit: str, status: int = 413) -> Refused:
    """A text, body or image beyond its limit."""
    message = f"{what} has {got:,} {unit}; at most {limit:,} are accepted"
    return Refused(status, f"too_many_{unit}", message, limit=limit, got=got)


def wrong(name: str, value: object, expected: str) -> Refused:
    """A parameter or field that cannot be read."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return Refused(422, "wrong_value", f"{name}={shown}, expected {expected}")
