"""Limits of the server, and refusals beyond them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Limits:
    """Sizes, lengths and times beyond which a request is refused."""

    characters: int = 20_000  #: of a text
    tokens: int = 1024  #: of a tokenized text
    new_tokens: int = 200  #: that a generation may add
    positions: int = 400  #: of prompt and new tokens together
    body_bytes: int = 256 * 1024  #: of a JSON request
    image_bytes: int = 12 * 1024**2  #: of an image file
    image_pixels: int = 24_000_000  #: of an image
    queue: int = 16  #: requests that may wait for the models
    tile_queue: int = 1024  #: tiles and rows that may wait
    connections: int = 768  #: open at a time
    seconds: int | float = 60  #: from accepting a request to its response
    head_seconds: int | float = 10  #: that request headers may take to arrive
    step_seconds: int | float = 5  #: that a generation waits for a client that does not read
    traces: int = 32  #: that are kept; the least recently used is dropped
    trace_bytes: int = 1024**3  #: of kept traces together
    tile_bytes: int = 192 * 1024**2  #: of kept tiles together
    packed_weights: int = 6_000_000  #: of a trace that is sent whole; a larger one goes in tiles
    packed_steps: int = 48_000_000  #: the same of a generation, whose steps are shown one by one

    def shown(self) -> dict[str, Any]:
        """The limits as the page gets them."""
        return asdict(self)


class Refusal(Exception):
    """A refused request: an HTTP status, a code for programs and a message for people."""

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
        """The body of the response."""
        error = {"code": self.code, "message": self.message, "limit": self.limit, "got": self.got}
        return {"error": error}


def not_found(what: str) -> Refusal:
    return Refusal(404, "not_found", f"there is no {what}")


def too_long(what: str, got: int, limit: int, unit: str, status: int = 413) -> Refusal:
    """A text, body or image beyond its limit."""
    message = f"{what} has {got:,} {unit}; at most {limit:,} are accepted"
    return Refusal(status, f"too_many_{unit}", message, limit=limit, got=got)


def queue_full(what: str, limit: int, got: int, retry_seconds: int) -> Refusal:
    """More requests wait than the queue holds."""
    message = f"{limit} {what} are waiting already; try again in a moment"
    headers = {"Retry-After": str(retry_seconds)}
    return Refusal(503, "queue_full", message, limit=limit, got=got, headers=headers)


def too_slow(seconds: int | float, advice: str) -> Refusal:
    """No answer came in time."""
    message = f"there was no answer within {seconds:g} seconds; {advice}"
    return Refusal(504, "too_slow", message, limit=seconds)


def wrong(name: str, value: object, expected: str) -> Refusal:
    """A parameter or field that cannot be read."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return Refusal(422, "wrong_value", f"{name}={shown}, expected {expected}")
