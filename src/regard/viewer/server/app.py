"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from torch import Tensor

from regard.viewer.chunks import raw
from regard.viewer.document import document, policy
from regard.viewer.server.asked import Asked, number
from regard.viewer.server.body import check_content_type, json_body, limited_body
from regard.viewer.server.door import Door
from regard.viewer.server.guard import Guard
from regard.viewer.server.limits import Limits, Refused
from regard.viewer.server.live import Models
from regard.viewer.server.openapi import description
from regard.viewer.server.pool import Pool
from regard.viewer.server.served import Served
from regard.viewer.server.tiles import SIDE
from regard.viewer.server.traces import Kept, Traces
from regard.viewer.server.worker import Ticket, Worker

logger = logging.getLogger("regard.viewer")
_T = TypeVar("_T")
Endpoint = Callable[[Request], Awaitable[Response]]


class Server:
    """What the routes share, and the routes."""

    def __init__(
        self, served: Sequence[Served], traces: Traces, limits: Limits, door: Door
    ) -> None:
        self._limits, self._door, self._traces = limits, door, traces
        self._models = Models(list(served), traces, limits)
        self._worker = Worker(limits.queue, limits.seconds, limits.step_seconds)
        self._pool = Pool(limits.tile_queue, limits.seconds)
        live = {"token_needed": door.token is not None}
        self._page = document([], "regard", live).encode()
        self._policy = f"{policy(live=True)}; frame-ancestors 'none'"

    def app(self) -> Starlette:
        """The application, for any server that speaks ASGI."""
        app = Starlette(
            routes=self.routes(),
            lifespan=self.lifespan,
            middleware=[Middleware(Guard, door=self._door)],
            exception_handlers={HTTPException: _http_error},
        )
        app.state.server = self
        return app

    def routes(self) -> list[Route]:
        one = "/api/traces/{id}"
        table: list[tuple[str, str, Endpoint]] = [
            ("GET", "/", self.page),
            ("GET", "/favicon.ico", self.icon),
            ("GET", "/openapi.json", self.openapi),
            ("GET", "/api/models", self.models),
            ("GET", "/api/traces", self.traces),
            ("GET", one, self.trace),
            ("GET", f"{one}/chunks/{{number}}", self.chunk),
            ("GET", f"{one}/tile", self.tile),
            ("GET", f"{one}/row", self.row),
            ("GET", f"{one}/column", self.column),
            ("POST", "/api/look", self.look),
            ("POST", "/api/image", self.image),
            ("POST", "/api/generate", self.generate),
            ("POST", "/api/translate", self.translate),
        ]
        return [Route(path, _answered(call), methods=[method]) for method, path, call in table]

    @property
    def waiting(self) -> int:
        """How many requests wait for the models, or run."""
        return self._worker.inside

    def stop(self) -> None:
        """Stop what runs for somebody at its next step."""
        self._worker.stop()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._worker.close()
        self._pool.close()

    async def page(self, request: Request) -> Response:
        headers = {"content-security-policy": self._policy}
        return Response(self._page, headers=headers, media_type="text/html; charset=utf-8")

    async def icon(self, request: Request) -> Response:
        return Response(status_code=204)  # browsers ask, and would report that there is none

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(description(self._limits))

    async def models(self, request: Request) -> Response:
        models = [served.shown() for served in self._models.served.values()]
        return JSONResponse({"models": models, "limits": self._limits.shown()})

    async def traces(self, request: Request) -> Response:
        return JSONResponse({"traces": [kept.shown() for kept in self._traces.pinned()]})

    async def trace(self, request: Request) -> Response:
        return _manifest(self._kept(request))

    async def chunk(self, request: Request) -> Response:
        chunks = self._kept(request).chunks
        found = chunks[number(request.path_params, "number", len(chunks))]
        return Response(found, media_type="application/octet-stream")

    async def tile(self, request: Request) -> Response:
        maps, query = self._kept(request).maps, request.query_params
        asked = Asked.of(query, maps.scene)
        level = number(query, "level", maps.levels(asked), "0")
        tiles = [-(-axis.size // (SIDE << level)) for axis in maps.axes(asked)]
        row, column = number(query, "row", tiles[0]), number(query, "column", tiles[1])
        alike = maps.alike(asked, level, row)
        return await self._floats(partial(maps.tile, asked, level, row, column), alike)

    async def row(self, request: Request) -> Response:
        maps = self._kept(request).maps
        asked = Asked.of(request.query_params, maps.scene)
        index = number(request.query_params, "row", maps.axes(asked)[0].size)
        alike = maps.alike(asked, 0, index // SIDE)
        return await self._floats(partial(maps.row, asked, index), alike)

    async def column(self, request: Request) -> Response:
        maps = self._kept(request).maps
        asked = Asked.of(request.query_params, maps.scene)
        index = number(request.query_params, "column", maps.axes(asked)[1].size)
        alike = maps.alike(asked, "column", index)
        return await self._floats(partial(maps.column, asked, index), alike)

    async def look(self, request: Request) -> Response:
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        work = self._models.look(body.get("model"), body.get("text"))
        with self._worker.place() as ticket:
            return _manifest(await _unless_gone(request, self._worker.run(work, ticket)))

    async def image(self, request: Request) -> Response:
        check_content_type(request, ("image/png", "image/jpeg"))
        name = request.query_params.get("model")
        self._models.named(name, "image")
        with self._worker.place() as ticket:  # before a large body is read
            data = await limited_body(request, self._limits.image_bytes, self._limits.seconds)
            work = self._models.image(name, data)
            return _manifest(await _unless_gone(request, self._worker.run(work, ticket)))

    async def generate(self, request: Request) -> Response:
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        given = (body.get("model"), body.get("text"), body.get("tokens"))
        return await self._streamed(request, self._models.generate(*given))

    async def translate(self, request: Request) -> Response:
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        work = self._models.translate(body.get("model"), body.get("text"))
        return await self._streamed(request, work)

    async def _streamed(
        self, request: Request, work: Callable[[Ticket], Generator[bytes]]
    ) -> Response:
        """Lines as they come; what is refused is refused before the answer begins."""
        lines = self._worker.stream(work)
        first = await _unless_gone(request, _first(lines))
        return _Lines(first, lines)

    def _kept(self, request: Request) -> Kept:
        return self._traces.get(request.path_params["id"])

    async def _floats(self, make: Callable[[], Tensor], alike: Hashable) -> Response:
        data = await self._pool.run(lambda: raw(make().contiguous()), alike)
        return Response(data, media_type="application/octet-stream")


def _answered(call: Endpoint) -> Endpoint:
    """The endpoint, its refusals and errors as JSON."""

    async def answered(request: Request) -> Response:
        try:
            return await call(request)
        except Refused as refused:
            return _refusal(refused)
        except Exception:
            logger.exception("%s failed", request.url.path)
            message = "the server failed to answer; its log says more"
            return _refusal(Refused(500, "failed", message))

    return answered


def _refusal(refused: Refused) -> Response:
    return JSONResponse(refused.shown(), refused.status, refused.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """An address or a method that there is not."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
    headers = dict(error.headers or {})
    return _refusal(Refused(error.status_code, code, error.detail, headers=headers))


def _manifest(kept: Kept) -> Response:
    return Response(kept.manifest, media_type="application/json")


class _Lines(StreamingResponse):
    """Lines as they come. When the client goes, even before the first one, so does their source."""

    media_type = "application/x-ndjson"

    def __init__(self, first: bytes, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(_told(first, lines))
        self._source = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            await super().__call__(scope, receive, send)


async def _told(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines; an error on the way is the last one."""
    yield first
    try:
        async for line in lines:
            yield line
    except Refused as refused:
        yield json.dumps({"event": "error", **refused.shown()}).encode() + b"\n"
    except Exception:
        logger.exception("a generation failed")
        failed = Refused(500, "failed", "the server failed; its log says more")
        yield json.dumps({"event": "error", **failed.shown()}).encode() + b"\n"


async def _first(lines: AsyncGenerator[bytes]) -> bytes:
    """The first line; whatever else happens, there will be no other."""
    try:
        return await anext(lines)
    except BaseException:
        await lines.aclose()
        raise


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The answer of some work, which is stopped when the client goes away."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refused(499, "gone", "the client went away")
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
