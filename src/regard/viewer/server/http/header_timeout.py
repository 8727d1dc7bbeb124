"""Drop slow clients: uvicorn itself waits for request headers without a limit."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def header_timeout(seconds: int | float) -> type[H11Protocol]:
    """A uvicorn protocol that closes connections whose request headers take too long.

    Time is counted from the connection, or from the first byte after a response: the rest of a
    refused body, or the next request.
    """

    class HeaderTimeoutProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._restart()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._restart()

        def connection_lost(self, exc: Exception | None) -> None:
            self._restart(closed=True)
            super().connection_lost(exc)

        def _restart(self, closed: bool = False) -> None:
            answering = self.cycle is not None and not self.cycle.response_complete
            if answering or closed:
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self.transport.close)

    return HeaderTimeoutProtocol
