"""Servers on real sockets, in a thread of the test process."""

import threading
import time
from contextlib import contextmanager

import httpx
import torch

from regard.viewer import Scene
from regard.viewer.server import Limits, ServedModel, uvicorn_server
from regard.viewer.server.http.access import AccessPolicy
from regard.viewer.server.maps.trace_store import TraceStore


class Running:
    """A server that listens, and a client of it."""

    def __init__(self, server, traces, address):
        self.server, self.traces, self.address = server, traces, address
        self.client = httpx.Client(base_url=address, timeout=30)

    @property
    def waiting(self):
        """How many requests wait for the models, or run."""
        return self.server.config.app.state.server.waiting

    def look(self, model="small", text="a b c", **options):
        return self.client.post("/api/look", json={"model": model, "text": text}, **options)


class Slow:
    """A model that waits until it is told to go on."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()

    def look(self, text):
        self.started.set()
        assert self.go.wait(20)
        return scene(3)


@contextmanager
def running(served=(), scenes=(), *, host="127.0.0.1", token=None, **limits):
    """A server while the block runs; nothing of it is left behind."""
    before = set(threading.enumerate())
    found, told = threading.Event(), []
    kept = Limits(**limits)
    traces = TraceStore(kept)
    for scene in scenes:
        traces.add(scene, pinned=True)
    listening = uvicorn_server._listen(host, 0)
    server = uvicorn_server._server(
        list(served),
        traces,
        kept,
        AccessPolicy.of(host, token),
        lambda at: (told.append(at), found.set()),
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    assert found.wait(20)
    here = Running(server, traces, told[0].partition("?")[0])
    try:
        yield here
    finally:
        here.client.close()
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
    deadline = time.monotonic() + 5
    while (left := ours() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, "threads are left"


def until(true, seconds=10):
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ours():
    """Threads of servers."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("regard")}


def attention(count, heads=2, layers=2, seed=0):
    """A trace of random dot products over as many tokens."""
    generator = torch.Generator().manual_seed(seed)
    query, key = (
        torch.randn(layers, 1, heads, count, 16, generator=generator) * 1.5 for _ in range(2)
    )
    return [(q @ k.mT / 4).softmax(-1) for q, k in zip(query, key)]


def scene(count=5, **options):
    return Scene.of(attention(count), title=f"{count} tokens", **options)


def small(name="small", look=None, **options):
    """A model that attends over the words of a text."""
    tokens = lambda text: len(text.split())
    look = look or (lambda text: scene(max(1, tokens(text))))
    return ServedModel(name, name.title(), "text", look, tokens=tokens, **options)


def refused(answer, status, code):
    """The error of an answer, after the checks that every refusal must pass."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "limit", "got"}
    assert error["code"] == code, error
    assert "Traceback" not in answer.text and ".py" not in answer.text
    return error
