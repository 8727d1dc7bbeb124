"""Middleware: the access check of every request, and security headers on every response."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.viewer.server.http.access import COOKIE, AccessPolicy
from regard.viewer.server.limits import Refusal

_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"


class AccessMiddleware:
    """Checks requests against the access policy and adds security headers to responses."""

    def __init__(self, app: ASGIApp, access: AccessPolicy) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", _POLICY)
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """A refusal or a redirect; None for a request that may pass."""
        headers = Headers(scope=scope)
        try:
            self._access.check_host(headers)
            redirect = self._visit(scope)
            if redirect is not None:
                return redirect
            self._access.check_token(headers)
            self._access.check_origin(scope["method"], scope["path"], headers)
        except Refusal as refusal:
            return JSONResponse(refusal.shown(), refusal.status, refusal.headers)
        return None

    def _visit(self, scope: Scope) -> Response | None:
        """`/?token=…`: set the cookie if the token is right, and redirect to `/`."""
        if self._access.token is None or scope["path"] != "/" or scope["method"] != "GET":
            return None
        tokens = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if not tokens or not self._access.opens(tokens[0]):
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self._access.cookie, httponly=True, samesite="strict")
        return answer
