"""Access control: the host, the origin and the token of a request."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from regard.errors import RegardError
from regard.viewer.server.limits import Refusal

COOKIE = "regard_token"
_SHORTEST = 12  # characters of a token
_LINKED = ("/", "/favicon.ico")  # that other pages may link to


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class AccessPolicy:
    """Who may send requests: checked by host name on loopback, by token beyond."""

    host: str
    token: str | None = None

    @classmethod
    def of(cls, host: str, token: str | None) -> AccessPolicy:
        """The policy for an address. Beyond loopback a token is required; "auto" generates one."""
        if token == "auto":
            token = secrets.token_urlsafe(24)
        if token is not None and len(token) < _SHORTEST:
            raise RegardError(f"--token has {len(token)} characters, expected at least {_SHORTEST}")
        if token is None and not is_loopback(host):
            raise RegardError(
                f"--host {host} can be reached from other machines, so a token is needed: "
                "--token …, or REGARD_TOKEN, or --token auto, which generates and prints one"
            )
        return cls(host, token)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse other host names: DNS rebinding points a foreign name to this machine."""
        if not is_loopback(self.host):
            return
        requested = headers.get("host", "")
        name = _host_name(requested)
        if not (is_loopback(name) or name == self.host):
            message = f"host {requested[:60]!r} is not served; open this page by its address"
            raise Refusal(403, "wrong_host", message)

    def check_origin(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Refuse requests that pages of other origins send; only the page itself may be linked."""
        if method in ("GET", "HEAD") and path in _LINKED:
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host")
        if foreign or site not in (None, "same-origin", "none"):
            raise Refusal(403, "wrong_origin", "pages of other sites may not ask this server")

    def check_token(self, headers: Mapping[str, str]) -> None:
        if self.token is None:
            return
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.opens(credentials.strip()):
            return
        if not _equal(_cookie(headers), self.cookie):
            raise Refusal(
                401,
                "token_needed",
                "this server needs a token: open /?token=… once, or send Authorization: Bearer …",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def opens(self, token: str) -> bool:
        return self.token is not None and _equal(token, self.token)

    @property
    def cookie(self) -> str:
        """The cookie of a visitor who has the token: proves it without containing it."""
        assert self.token is not None
        return hashlib.sha256(b"regard cookie\0" + self.token.encode()).hexdigest()


def _equal(secret: str, expected: str) -> bool:
    """Whether two secrets are equal, in constant time."""
    return hmac.compare_digest(secret.encode(), expected.encode())


def _cookie(headers: Mapping[str, str]) -> str:
    from starlette.requests import cookie_parser  # an extra; tolerates malformed cookies

    return cookie_parser(headers.get("cookie", "")).get(COOKIE, "")


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
