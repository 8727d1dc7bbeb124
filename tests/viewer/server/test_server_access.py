"""Who is let in, and what every answer says to the browser."""

from urllib.parse import urlsplit

import httpx
import pytest
from serving import refused, running, small

from regard.errors import RegardError
from regard.viewer.server.http.access import COOKIE, AccessPolicy, is_loopback
from regard.viewer.server.uvicorn_server import _address

TOKEN = "a-token-that-is-long"


@pytest.fixture(scope="module")
def open_server():
    with running([small()]) as here:
        yield here


@pytest.fixture(scope="module")
def closed_server():
    with running([small()], host="0.0.0.0", token=TOKEN) as here:
        yield here


def test_the_page_has_a_strict_policy(open_server):
    answer = open_server.client.get("/")
    assert answer.status_code == 200
    policy = dict(
        rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    for source in ("script-src", "style-src"):
        assert policy[source].startswith("'sha256-") and " " not in policy[source]
        assert policy[source].strip("'") in answer.text, "the same in the file"
    assert "unsafe" not in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/", "/api/models", "/openapi.json", "/nowhere"])
def test_headers_of_every_answer(open_server, path):
    headers = open_server.client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[", "", "a b"]
)
def test_names_of_other_hosts_are_refused(open_server, host):
    answer = open_server.client.get("/api/models", headers={"host": host})
    if answer.status_code != 400:  # what is no host at all is refused below us
        refused(answer, 403, "wrong_host")
    assert open_server.client.get("/api/models").status_code == 200


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:80", "127.9.9.9"])
def test_names_of_this_machine_are_served(open_server, host):
    assert open_server.client.get("/api/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_pages_may_not_ask(open_server, headers):
    refused(open_server.look(headers=headers), 403, "wrong_origin")
    for path in ("/api/models", "/api/traces", "/openapi.json"):
        refused(open_server.client.get(path, headers=headers), 403, "wrong_origin")
    assert open_server.client.get("/", headers=headers).status_code == 200, "a link to the page"
    assert open_server.look().status_code == 200


def test_our_own_page_may_ask(open_server):
    origin = open_server.address.rstrip("/")
    own = {"origin": origin, "sec-fetch-site": "same-origin"}
    assert open_server.look(headers=own).status_code == 200
    assert open_server.client.get("/api/models", headers=own).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"regard_token={TOKEN}"},
        {"cookie": "regard_token=\x7f"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/models", "/openapi.json", "/?token=wrong"])
def test_without_the_token_nothing_is_told(closed_server, headers, path):
    answer = closed_server.client.get(path, headers=headers)
    refused(answer, 401, "token_needed")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text and "set-cookie" not in answer.headers


def test_the_token_opens(closed_server):
    own = {"authorization": f"Bearer {TOKEN}"}
    assert closed_server.client.get("/api/models", headers=own).status_code == 200
    assert closed_server.look(headers=own).status_code == 200
    refused(closed_server.look(), 401, "token_needed")


def test_a_visit_with_the_token_leaves_a_cookie(closed_server):
    with httpx.Client(base_url=closed_server.address) as visitor:
        answer = visitor.get("/", params={"token": TOKEN})
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert visitor.get("/").status_code == 200
        assert visitor.get("/api/models").status_code == 200
        foreign = {"origin": "http://evil.example"}
        body = {"model": "small", "text": "a"}
        refused(visitor.post("/api/look", json=body, headers=foreign), 403, "wrong_origin")


@pytest.mark.parametrize("other", ["odd={a:b}; ", "a b=c; ", 'q="; ', "é=1; ", "=; ;"])
def test_odd_cookies_of_others_do_not_hide_ours(closed_server, other):
    ours = f"{COOKIE}={AccessPolicy('0.0.0.0', TOKEN).cookie}"
    headers = {"cookie": f"{other}{ours}".encode()}
    assert closed_server.client.get("/api/models", headers=headers).status_code == 200


def test_the_address_that_is_told_opens_whatever_the_token_is():
    token = "a&b=c #d+e%20/ü"
    with running([small()], host="0.0.0.0", token=token) as here:
        answer = httpx.get(_address(AccessPolicy("0.0.0.0", token), urlsplit(here.address).port))
        assert answer.status_code == 303 and "set-cookie" in answer.headers


def test_beyond_loopback_a_token_is_needed():
    with pytest.raises(RegardError, match=r"--host 0\.0\.0\.0 .* token is needed"):
        AccessPolicy.of("0.0.0.0", None)
    with pytest.raises(RegardError, match="5 characters, expected at least 12"):
        AccessPolicy.of("127.0.0.1", "short")
    made = {AccessPolicy.of("::", "auto").token for _ in range(2)}
    assert len(made) == 2 and all(token and len(token) >= 32 for token in made)


def test_what_loopback_is():
    for host in ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", "localhost.example.org", ""):
        assert not is_loopback(host), host
