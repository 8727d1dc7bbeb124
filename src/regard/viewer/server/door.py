"""Who may ask: the host, the origin and the token of a request."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from regard.errors import RegardError
from regard.viewer.server.limits import Refused

COOKIE = "regard_token"
_SHORTEST = 12  # characters of a token
_LINKED = ("/", "/favicon.ico")  # that pages elsewhere may link to


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class Door:
    """Who is let in: by name of the host on loopback, by token beyond."""

    host: str
    token: str | None = None

    @classmethod
    def of(cls, host: str, token: str | None) -> Door:
        """The door of an address. Beyond loopback a token is needed; "auto" makes one."""
        if token == "auto":
            token = secrets.token_urlsafe(24)
        if token is not None and len(token) < _SHORTEST:
            raise RegardError(f"--token has {len(token)} characters, expected at least {_SHORTEST}")
        if token is None and not is_loopback(host):
            raise RegardError(
                f"--host {host} can be reached from other machines, so a token is needed: "
                "--token …, or REGARD_TOKEN, or --token auto, which makes one and prints it"
            )
        return cls(host, token)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """A page elsewhere may let its own name point to this machine: names are checked."""
        if not is_loopback(self.host):
            return
        asked = headers.get("host", "")
        name = _host_name(asked)
        if not (is_loopback(name) or name == self.host):
            message = f"host {asked[:60]!r} is not served; open this page by its address"
            raise Refused(403, "wrong_host", message)

    def check_origin(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """All but the page itself is asked for by our own page, or by no page at all."""
        if method in ("GET", "HEAD") and path in _LINKED:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
        if foreign or site not in (None, "same-origin", "none"):
            raise Refused(403, "wrong_origin", "pages of other sites may not ask this server")

    def check_token(self, headers: Mapping[str, str]) -> None:
        if self.token is None:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.opens(given.strip()):
            return
        if not _equal(_cookie(headers), self.cookie):
            raise Refused(
                401,
                "token_needed",
                "this server needs a token: open /?token=… once, or send Authorization: Bearer …",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def opens(self, token: str) -> bool:
        return self.token is not None and _equal(token, self.token)

    @property
    def cookie(self) -> str:
        """What a visitor with the token is given: it proves the token and does not tell it."""
        assert self.token is not None
        return hashlib.sha256(b"regard cookie\0" + self.token.encode()).hexdigest()


def _equal(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _cookie(headers: Mapping[str, str]) -> str:
    from starlette.requests import cookie_parser  # of an extra; one odd cookie spoils no other

    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def _host_name(asked: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{asked}").hostname or ""
    except ValueError:
        return ""
