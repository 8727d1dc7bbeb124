"""Bodies of requests, read piece by piece: a huge one is refused before it is held."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from regard.viewer.server.limits import Refused, too_long, wrong


async def limited_body(request: Request, limit: int, seconds: int | float) -> bytes:
    """The body, if it has at most `limit` bytes and comes within some seconds."""
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > limit:
        raise too_long("the body", int(said), limit, "bytes")
    found = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for piece in request.stream():
                found += piece
                if len(found) > limit:
                    raise too_long("the body", len(found), limit, "bytes")
    except TimeoutError as error:
        message = f"the body did not come within {seconds:g} seconds"
        raise Refused(408, "too_slow", message, limit=seconds) from error
    except ClientDisconnect as error:
        raise Refused(499, "gone", "the client went away") from error
    return bytes(found)


async def json_body(request: Request, limit: int, seconds: int | float) -> dict[str, Any]:
    """A body that is a JSON object."""
    check_content_type(request, ("application/json",))
    data = await limited_body(request, limit, seconds)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "not_json", "the body is not JSON") from error
    if not isinstance(found, dict):
        raise wrong("body", found, "a JSON object")
    return found


def check_content_type(request: Request, allowed: tuple[str, ...]) -> None:
    """A page elsewhere cannot send these types without asking first, and is not let."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in allowed:
        message = f"Content-Type {given[:40]!r}, expected {' or '.join(allowed)}"
        raise Refused(415, "wrong_content_type", message)
