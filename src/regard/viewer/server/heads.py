"""Connections that ask for nothing are closed: uvicorn itself waits for the head of a request."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def timed(seconds: int | float) -> type[H11Protocol]:
    """The protocol of a connection on which the head of a request must come within some seconds.

    Time is counted from the connection, or from the first byte after an answer: the rest of a body
    that was refused, or the next request.
    """

    class Timed(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait(over=True)
            super().connection_lost(exc)

        def _wait(self, over: bool = False) -> None:
            asked = self.cycle is not None and not self.cycle.response_complete
            if asked or over:
                if self._waiting is not None:
                    self._waiting.cancel()
                    self._waiting = None
            elif self._waiting is None:
                self._waiting = self.loop.call_later(seconds, self.transport.close)

    return Timed
