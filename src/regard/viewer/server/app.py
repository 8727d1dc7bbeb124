"""The server: its endpoints and what answers them."""

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
from regard.viewer.server import openapi
from regard.viewer.server.http.access import AccessPolicy
from regard.viewer.server.http.access_middleware import AccessMiddleware
from regard.viewer.server.http.request_body import check_content_type, json_body, limited_body
from regard.viewer.server.limits import Limits, Refusal
from regard.viewer.server.maps.map_query import MapQuery, number
from regard.viewer.server.maps.tile_pool import TilePool
from regard.viewer.server.maps.tiles import SIDE, Maps
from regard.viewer.server.maps.trace_store import StoredTrace, TraceStore
from regard.viewer.server.models.model_queue import ModelQueue, Ticket
from regard.viewer.server.models.model_requests import ModelRequests
from regard.viewer.server.models.served_model import ServedModel
from regard.viewer.server.openapi import (
    BINARY,
    ENDPOINTS,
    IMAGE,
    LEVEL,
    MAP,
    STRING,
    endpoint,
    json_of,
    lines_of,
    query,
)

logger = logging.getLogger("regard.viewer")
_T = TypeVar("_T")
Handler = Callable[[Request], Awaitable[Response]]


_TRACE = "/api/traces/{id}"


class Server:
    """The handlers of all endpoints, and what they share."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        traces: TraceStore,
        limits: Limits,
        access: AccessPolicy,
    ) -> None:
        self._limits, self._access, self._traces = limits, access, traces
        self._models = ModelRequests(list(models), traces, limits)
        self._queue = ModelQueue(limits.queue, limits.seconds, limits.step_seconds)
        self._pool = TilePool(limits.tile_queue, limits.seconds)
        live = {"token_needed": access.token is not None}
        self._page = document([], "regard", live).encode()
        self._policy = f"{policy(live=True)}; frame-ancestors 'none'"

    def app(self) -> Starlette:
        """The ASGI application."""
        app = Starlette(
            routes=[
                Route(e.path, _with_refusals(partial(e.handler, self)), methods=[e.method])
                for e in ENDPOINTS
            ],
            lifespan=self.lifespan,
            middleware=[Middleware(AccessMiddleware, access=self._access)],
            exception_handlers={HTTPException: _http_error},
        )
        app.state.server = self
        return app

    @property
    def waiting(self) -> int:
        """How many requests wait for the models, or run."""
        return self._queue.inside

    def stop(self) -> None:
        """Stop running work at its next step."""
        self._queue.stop()

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._queue.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._queue.close()
        self._pool.close()

    @endpoint("GET", "/", {"text/html": {"type": "string"}})
    async def page(self, request: Request) -> Response:
        """The page."""
        headers = {"content-security-policy": self._policy}
        return Response(self._page, headers=headers, media_type="text/html; charset=utf-8")

    @endpoint("GET", "/favicon.ico", {})
    async def icon(self, request: Request) -> Response:
        """Nothing: the page has no icon."""
        return Response(status_code=204)  # browsers request it and log a missing icon

    @endpoint("GET", "/openapi.json", {"application/json": {"type": "object"}})
    async def description(self, request: Request) -> Response:
        """This description."""
        return JSONResponse(openapi.document(self._limits))

    @endpoint("GET", "/api/models", json_of("Models"))
    async def models(self, request: Request) -> Response:
        """Models and limits."""
        models = [model.shown() for model in self._models.models.values()]
        return JSONResponse({"models": models, "limits": self._limits.shown()})

    @endpoint("GET", "/api/traces", json_of("Traces"))
    async def traces(self, request: Request) -> Response:
        """Traces given at start."""
        return JSONResponse({"traces": [stored.shown() for stored in self._traces.pinned()]})

    @endpoint("GET", _TRACE, json_of("Scene"))
    async def trace(self, request: Request) -> Response:
        """The manifest of a trace."""
        return _manifest(self._stored(request))

    @endpoint("GET", f"{_TRACE}/chunks/{{number}}", BINARY)
    async def chunk(self, request: Request) -> Response:
        """A chunk of a trace: zlib; bytes of numbers split into planes."""
        chunks = self._stored(request).chunks
        data = chunks[number(request.path_params, "number", len(chunks))]
        return Response(data, media_type="application/octet-stream")

    @endpoint("GET", f"{_TRACE}/tile", BINARY, *MAP, LEVEL, query("row"), query("column"))
    async def tile(self, request: Request) -> Response:
        """256 × 256 cells of a map, float32, little endian; a cell of level l is the weight
        farthest from 0 of 2^l × 2^l."""
        (maps, map_query), query = self._map(request), request.query_params
        level = number(query, "level", maps.levels(map_query), "0")
        tiles = [-(-axis.size // (SIDE << level)) for axis in maps.axes(map_query)]
        row, column = number(query, "row", tiles[0]), number(query, "column", tiles[1])
        alike = maps.alike(map_query, level, row)
        return await self._floats(partial(maps.tile, map_query, level, row, column), alike)

    @endpoint("GET", f"{_TRACE}/row", BINARY, *MAP, query("row"))
    async def row(self, request: Request) -> Response:
        """One row of a map, float32, little endian."""
        maps, map_query = self._map(request)
        index = number(request.query_params, "row", maps.axes(map_query)[0].size)
        alike = maps.alike(map_query, 0, index // SIDE)
        return await self._floats(partial(maps.row, map_query, index), alike)

    @endpoint("GET", f"{_TRACE}/column", BINARY, *MAP, query("column"))
    async def column(self, request: Request) -> Response:
        """One column of a map, float32, little endian."""
        maps, map_query = self._map(request)
        index = number(request.query_params, "column", maps.axes(map_query)[1].size)
        alike = maps.alike(map_query, "column", index)
        return await self._floats(partial(maps.column, map_query, index), alike)

    @endpoint("GET", f"{_TRACE}/features", BINARY, *MAP, query("row"), query("column"))
    async def features(self, request: Request) -> Response:
        """What each feature of query and key adds to the score of a pair of positions, float32,
        little endian; refused where scores are made in another way."""
        maps, map_query = self._map(request)
        site = map_query.sites(maps.scene)[0]
        lines = (maps.scene.lines[line] for line in (site.queries, site.keys))
        row, column = (
            number(request.query_params, name, len(line.tokens))
            for name, line in zip(("row", "column"), lines)
        )
        alike = maps.alike(map_query, "features", row, column)
        return await self._floats(partial(maps.features, map_query, row, column), alike)

    @endpoint("POST", "/api/look", json_of("Scene"), body=json_of("Look"))
    async def look(self, request: Request) -> Response:
        """Run a model on a text; the manifest of its trace."""
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        work = self._models.look(body.get("model"), body.get("text"))
        with self._queue.reserve() as ticket:
            return _manifest(await _until_disconnect(request, self._queue.run(work, ticket)))

    @endpoint("POST", "/api/image", json_of("Scene"), query("model", STRING), body=IMAGE)
    async def image(self, request: Request) -> Response:
        """Run a model on an image; the manifest of its trace."""
        check_content_type(request, ("image/png", "image/jpeg"))
        name = request.query_params.get("model")
        self._models.named(name, "image")
        with self._queue.reserve() as ticket:  # before a large body is read
            data = await limited_body(request, self._limits.image_bytes, self._limits.seconds)
            work = self._models.image(name, data)
            return _manifest(await _until_disconnect(request, self._queue.run(work, ticket)))

    @endpoint("POST", "/api/generate", lines_of("Event"), body=json_of("Generate"))
    async def generate(self, request: Request) -> Response:
        """Let a model continue a text; a line of JSON for each event."""
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        arguments = (body.get("model"), body.get("text"), body.get("tokens"))
        return await self._streamed(request, self._models.generate(*arguments))

    @endpoint("POST", "/api/translate", lines_of("DraftEvent"), body=json_of("Look"))
    async def translate(self, request: Request) -> Response:
        """Let a model translate a text; a line of JSON for each event."""
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        work = self._models.translate(body.get("model"), body.get("text"))
        return await self._streamed(request, work)

    async def _streamed(
        self, request: Request, work: Callable[[Ticket], Generator[bytes]]
    ) -> Response:
        """Stream lines; a refusal comes before the response begins."""
        lines = self._queue.stream(work)
        first = await _until_disconnect(request, _first(lines))
        return _Lines(first, lines)

    def _map(self, request: Request) -> tuple[Maps, MapQuery]:
        maps = self._stored(request).maps
        return maps, MapQuery.of(request.query_params, maps.scene)

    def _stored(self, request: Request) -> StoredTrace:
        return self._traces.get(request.path_params["id"])

    async def _floats(self, make: Callable[[], Tensor], alike: Hashable) -> Response:
        data = await self._pool.run(lambda: raw(make().contiguous()), alike)
        return Response(data, media_type="application/octet-stream")


def _with_refusals(call: Handler) -> Handler:
    """The handler, with refusals and errors as JSON."""

    async def answer(request: Request) -> Response:
        try:
            return await call(request)
        except Refusal as refusal:
            return _refusal(refusal)
        except Exception:
            logger.exception("%s failed", request.url.path)
            message = "the server failed to answer; its log says more"
            return _refusal(Refusal(500, "failed", message))

    return answer


def _refusal(refusal: Refusal) -> Response:
    return JSONResponse(refusal.shown(), refusal.status, refusal.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, as JSON."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "wrong_method"}.get(error.status_code, "refused")
    headers = dict(error.headers or {})
    return _refusal(Refusal(error.status_code, code, error.detail, headers=headers))


def _manifest(stored: StoredTrace) -> Response:
    return Response(stored.manifest, media_type="application/json")


class _Lines(StreamingResponse):
    """Streamed lines; their source is closed when the client disconnects, even before the first."""

    media_type = "application/x-ndjson"

    def __init__(self, first: bytes, lines: AsyncGenerator[bytes]) -> None:
        super().__init__(_with_errors(first, lines))
        self._source = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source):
            await super().__call__(scope, receive, send)


async def _with_errors(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines; an error becomes the last one."""
    yield first
    try:
        async for line in lines:
            yield line
    except Refusal as refusal:
        yield json.dumps({"event": "error", **refusal.shown()}).encode() + b"\n"
    except Exception:
        logger.exception("a generation failed")
        failed = Refusal(500, "failed", "the server failed; its log says more")
        yield json.dumps({"event": "error", **failed.shown()}).encode() + b"\n"


async def _first(lines: AsyncGenerator[bytes]) -> bytes:
    """The first line; closes the source where that fails."""
    try:
        return await anext(lines)
    except BaseException:
        await lines.aclose()
        raise


async def _until_disconnect(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of some work, which is cancelled when the client disconnects."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Refusal(499, "gone", "the client went away")
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
