"""A server from start to stop; uvicorn is known here and in `heads` alone."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from regard.errors import MissingExtraError, RegardError
from regard.viewer.scene import Scene
from regard.viewer.server.door import Door
from regard.viewer.server.limits import Limits
from regard.viewer.server.served import Served
from regard.viewer.server.traces import Traces

_TURN = 0.0005  # seconds that a thread of Python runs before another may
_IDLE = 75  # seconds that a connection may be idle: longer than clients keep theirs
_PATIENCE = 5  # seconds that answers under way get when the server stops


def serve(
    served: Sequence[Served] = (),
    scenes: Sequence[Scene] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    limits: Limits | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until somebody interrupts it. Needs `regard[viewer]`.

    Args:
        served: models that can be asked.
        scenes: traces that can be looked at from the start.
        host: the address to listen at; one that other machines can reach needs a token.
        port: 0 for any free one.
        token: what a visitor must show; "auto" makes one.
        limits: beyond which requests are refused.
        ready: told the address, with the token in it, once it can be opened.
    """
    check_extra()
    door = Door.of(host, token)
    listening = _listening(host, port)
    limits = limits or Limits()
    with listening:
        traces = Traces(limits)
        for scene in scenes:
            traces.add(scene, pinned=True)
        server = _server(list(served), traces, limits, door, ready)
        with _quick_turns(), suppress(KeyboardInterrupt):  # raised again once it has stopped
            server.run(sockets=[listening])


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Threads of Python take turns often, so that answers do not wait for a model's own Python."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check_extra() -> None:
    """An error that has the command which installs what is missing."""
    for package in ("starlette", "uvicorn"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "viewer") from error


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=512)
    except OSError as error:
        raise RegardError(f"--host {host} --port {port}: {error.strerror or error}") from error


def _server(
    served: list[Served], traces: Traces, limits: Limits, door: Door, ready: Callable[[str], None]
) -> Any:
    import uvicorn

    from regard.viewer.server.app import Server
    from regard.viewer.server.heads import timed

    ours = Server(served, traces, limits, door)

    class Announced(uvicorn.Server):
        """Says where it is once it listens, and stops models before it waits for answers."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and sockets:
                ready(_address(door, sockets[0].getsockname()[1]))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ours.stop()
            await super().shutdown(sockets)

    return Announced(
        uvicorn.Config(
            ours.app(),
            http=timed(limits.head_seconds),
            limit_concurrency=limits.connections,
            access_log=False,
            log_level="warning",
            lifespan="on",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_PATIENCE,
            timeout_keep_alive=_IDLE,
        )
    )


def _address(door: Door, port: int) -> str:
    host = f"[{door.host}]" if ":" in door.host else door.host
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    query = "" if door.token is None else f"?token={quote(door.token, safe='')}"
    return f"http://{host}:{port}/{query}"
