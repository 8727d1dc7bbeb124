"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
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
from regard.viewer.server.worker import Worker

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
        self._worker = Worker(limits.queue, limits.seconds)
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
        yield
        await asyncio.to_thread(self._worker.close)
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
        return JSONResponse({"traces": [kept.shown() for kept in self._traces.all()]})

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
        return await self._floats(partial(maps.tile, asked, level, row, column))

    async def row(self, request: Request) -> Response:
        maps = self._kept(request).maps
        asked = Asked.of(request.query_params, maps.scene)
        index = number(request.query_params, "row", maps.axes(asked)[0].size)
        return await self._floats(partial(maps.row, asked, index))

    async def column(self, request: Request) -> Response:
        maps = self._kept(request).maps
        asked = Asked.of(request.query_params, maps.scene)
        index = number(request.query_params, "column", maps.axes(asked)[1].size)
        return await self._floats(partial(maps.column, asked, index))

    async def look(self, request: Request) -> Response:
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        work = self._models.look(body.get("model"), body.get("text"))
        return _manifest(await _unless_gone(request, self._worker.run(work)))

    async def image(self, request: Request) -> Response:
        check_content_type(request, ("image/png", "image/jpeg"))
        name = request.query_params.get("model")
        self._models.named(name, "image")  # before a large body is read
        data = await limited_body(request, self._limits.image_bytes, self._limits.seconds)
        work = self._models.image(name, data)
        return _manifest(await _unless_gone(request, self._worker.run(work)))

    async def generate(self, request: Request) -> Response:
        body = await json_body(request, self._limits.body_bytes, self._limits.seconds)
        given = (body.get("model"), body.get("text"), body.get("tokens"))
        lines = self._worker.stream(self._models.generate(*given))
        first = await anext(lines)  # what is refused is refused before the answer begins
        return StreamingResponse(_lines(first, lines), media_type="application/x-ndjson")

    def _kept(self, request: Request) -> Kept:
        return self._traces.get(request.path_params["id"])

    async def _floats(self, make: Callable[[], Tensor]) -> Response:
        data = await self._pool.run(lambda: raw(make().contiguous()))
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


async def _lines(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines as they come; an error on the way is the last one. When the client goes, so does it."""
    async with aclosing(lines):  # type: ignore[type-var]
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
