"""Run the server from start to stop; only this file and `http/header_timeout.py` use uvicorn."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from regard.errors import MissingExtraError, RegardError
from regard.viewer.scene import Scene
from regard.viewer.server.http.access import AccessPolicy
from regard.viewer.server.limits import Limits
from regard.viewer.server.maps.trace_store import TraceStore
from regard.viewer.server.models.served_model import ServedModel

_TURN = 0.0005  # seconds that a Python thread runs before another may
_IDLE = 75  # seconds that a connection may be idle: longer than clients keep theirs
_PATIENCE = 5  # seconds that running responses get when the server stops


def serve(
    served: Sequence[ServedModel] = (),
    scenes: Sequence[Scene] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    limits: Limits | None = None,
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until interrupted. Needs `regard[viewer]`.

    Args:
        served: models to run on request.
        scenes: saved traces to show.
        host: the address to listen at; one that other machines can reach needs a token.
        port: the port; 0 for any free one.
        token: the secret that requests must carry; "auto" generates one.
        limits: sizes and times beyond which requests are refused.
        ready: called with the address, token included, once the server listens.
    """
    check_extra()
    access = AccessPolicy.of(host, token)
    listener = _listen(host, port)
    limits = limits or Limits()
    with listener:
        traces = TraceStore(limits)
        for scene in scenes:
            traces.add(scene, pinned=True)
        server = _server(list(served), traces, limits, access, ready)
        with _quick_turns(), suppress(KeyboardInterrupt):  # uvicorn raises it again after stopping
            server.run(sockets=[listener])


@contextmanager
def _quick_turns() -> Iterator[None]:
    """Switch threads more often, so that responses do not wait for a model's Python code."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def check_extra() -> None:
    """Raise an error with the install command where a package is missing."""
    for package in ("starlette", "uvicorn"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, "viewer") from error


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=512)
    except OSError as error:
        raise RegardError(f"--host {host} --port {port}: {error.strerror or error}") from error


def _server(
    models: list[ServedModel],
    traces: TraceStore,
    limits: Limits,
    access: AccessPolicy,
    ready: Callable[[str], None],
) -> Any:
    import uvicorn

    from regard.viewer.server.app import Server
    from regard.viewer.server.http.header_timeout import header_timeout

    server = Server(models, traces, limits, access)

    class AnnouncingServer(uvicorn.Server):
        """Reports its address once it listens, and stops models before it waits for responses."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started and sockets:
                ready(_address(access, sockets[0].getsockname()[1]))

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            server.stop()
            await super().shutdown(sockets)

    return AnnouncingServer(
        uvicorn.Config(
            server.app(),
            http=header_timeout(limits.head_seconds),
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


def _address(access: AccessPolicy, port: int) -> str:
    host = f"[{access.host}]" if ":" in access.host else access.host
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    query = "" if access.token is None else f"?token={quote(access.token, safe='')}"
    return f"http://{host}:{port}/{query}"
