"""Request bodies, read in chunks: one that is too large is refused before it is in memory."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from regard.viewer.server.limits import Refusal, too_long, wrong


async def limited_body(request: Request, limit: int, seconds: int | float) -> bytes:
    """The body, if it has at most `limit` bytes and arrives in time."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise too_long("the body", int(length), limit, "bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise too_long("the body", len(body), limit, "bytes")
    except TimeoutError as error:
        message = f"the body did not come within {seconds:g} seconds"
        raise Refusal(408, "too_slow", message, limit=seconds) from error
    except ClientDisconnect as error:
        raise Refusal(499, "gone", "the client went away") from error
    return bytes(body)


async def json_body(request: Request, limit: int, seconds: int | float) -> dict[str, Any]:
    """A body that is a JSON object."""
    check_content_type(request, ("application/json",))
    data = await limited_body(request, limit, seconds)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "not_json", "the body is not JSON") from error
    if not isinstance(body, dict):
        raise wrong("body", body, "a JSON object")
    return body


def check_content_type(request: Request, allowed: tuple[str, ...]) -> None:
    """Refuse other types: browsers send these cross-origin only after a preflight request."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in allowed:
        message = f"Content-Type {content_type[:40]!r}, expected {' or '.join(allowed)}"
        raise Refusal(415, "wrong_content_type", message)
