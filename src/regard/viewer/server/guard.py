"""Every request is checked at the door, every answer leaves with headers of caution."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.viewer.server.door import COOKIE, Door
from regard.viewer.server.limits import Refused

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"


class Guard:
    """Lets requests in by the door, and puts the headers of caution on every answer."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def careful(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", _POLICY)
            await send(message)

        refused = self._answer(scope)
        await (refused or self._app)(scope, receive, careful)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer of the door itself; None for a request that is let in."""
        headers = Headers(scope=scope)
        try:
            self._door.check_host(headers)
            visited = self._visit(scope)
            if visited is not None:
                return visited
            self._door.check_token(headers)
            self._door.check_origin(scope["method"], scope["path"], headers)
        except Refused as refused:
            return JSONResponse(refused.shown(), refused.status, refused.headers)
        return None

    def _visit(self, scope: Scope) -> Response | None:
        """`/?token=…`: a cookie for who has the token, and the address without it."""
        if self._door.token is None or scope["path"] != "/" or scope["method"] != "GET":
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if not given or not self._door.opens(given[0]):
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self._door.cookie, httponly=True, samesite="strict")
        return answer
