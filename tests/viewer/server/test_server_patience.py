"""Clients that are slow, have gone, or ask for nothing; and how the server begins and ends."""

import asyncio
import gc
import json
import socket
import threading
import time
import weakref
from contextlib import closing, suppress
from itertools import pairwise
from urllib.parse import urlsplit

import httpx
import pytest
import torch
from serving import Slow, ours, running, scene, small, until

from regard.viewer.server import Limits, ServedModel
from regard.viewer.server.app import Server, _Lines
from regard.viewer.server.http.access import AccessPolicy
from regard.viewer.server.maps.tile_pool import TilePool
from regard.viewer.server.maps.trace_store import TraceStore
from regard.viewer.server.models.model_queue import ModelQueue
from regard.viewer.server.models.served_model import PromptTokens, Step


def connected(here, data=b""):
    """A connection of our own, on which only what is said here is sent."""
    at = urlsplit(here.address)
    found = socket.create_connection((at.hostname, at.port), timeout=5)
    found.sendall(data)
    return found


def is_closed(connection):
    """Whether the server closes a connection, before we lose patience."""
    with suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def test_who_leaves_before_a_generation_begins_leaves_the_queue():
    slow, seen = Slow(), []

    def generate(text, count):
        seen.append(text)
        yield PromptTokens(["a"], [False])
        yield scene(2)

    with running([small(look=slow.look), small("writes", generate=generate)], queue=1) as here:
        first = threading.Thread(target=here.look)
        first.start()
        assert slow.started.wait(5)
        body = {"model": "writes", "text": "gone", "tokens": 2}
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                here.client.post("/api/generate", json=body, timeout=0.2)
            until(lambda: here.waiting == 1)
        slow.go.set()
        first.join(10)
        answer = here.client.post("/api/generate", json={**body, "text": "still there"})
        assert answer.status_code == 200
        assert seen == ["still there"]


def test_who_leaves_before_the_first_line_is_sent_ends_the_generation():
    ended = []

    async def generation():
        try:
            yield b"first"
            yield b"second"
        finally:
            ended.append(True)

    async def gone():
        return {"type": "http.disconnect"}

    async def nowhere(message):
        await asyncio.sleep(10)

    async def answer():
        lines = generation()  # held, so that nobody but the answer ends it
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        await _Lines(await anext(lines), lines)(scope, gone, nowhere)
        return list(ended)

    assert asyncio.run(answer()) == [True]


def test_what_was_to_be_run_for_who_has_gone_is_not_held():
    class Body:
        """Large, if it were real."""

    async def leave():
        worker = ModelQueue(4, 60, 5)
        worker.start()
        busy = threading.Event()
        with worker.reserve() as ticket:
            running = asyncio.create_task(worker.run(lambda ticket: busy.wait(10), ticket))
            await asyncio.sleep(0)
            body = Body()
            alive = weakref.ref(body)
            with suppress(TimeoutError), worker.reserve() as other:
                async with asyncio.timeout(0.1):
                    await worker.run(lambda ticket, body=body: body, other)
            del body
            gc.collect()
            held = alive() is not None
            busy.set()
            await running
        await asyncio.to_thread(worker.close)
        return held

    assert not asyncio.run(leave())


def test_an_image_has_its_place_before_it_is_sent():
    slow, eye = Slow(), ServedModel("eye", "Eye", "image", lambda data: scene(4))
    head = (
        b"POST /api/image?model=eye HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: image/png\r\nContent-Length: 1000000\r\n\r\n"
    )
    with running([small(look=slow.look), eye], queue=1) as here:
        first = threading.Thread(target=here.look)
        first.start()
        assert slow.started.wait(5)
        with closing(connected(here, head)):
            until(lambda: here.waiting == 2)
            with closing(connected(here, head)) as full:
                assert full.recv(100).startswith(b"HTTP/1.1 503"), "before it is sent"
        until(lambda: here.waiting == 1)  # who breaks off gives the place back
        slow.go.set()
        first.join(10)


def test_connections():
    with running([small()], connections=6) as here:
        assert here.look().status_code == 200
        idle = [connected(here) for _ in range(6)]
        time.sleep(0.1)
        assert here.look().status_code == 503
        for one in idle:
            one.close()
        here.client.close()
        time.sleep(0.1)
        here.client = httpx.Client(base_url=here.address, timeout=30)
        assert here.look().status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"GET /api/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "half a head", "half a second head", "half a body"],
)
def test_a_connection_that_asks_for_nothing_is_closed(sent):
    with running([small()], head_seconds=0.3) as here, closing(connected(here)) as connection:
        for number in range(0, len(sent), 20):
            connection.sendall(sent[number : number + 20])
        time.sleep(0.1)
        with suppress(OSError):
            connection.sendall(b"X")  # a byte now and then does not help
        assert is_closed(connection)


def test_a_slow_answer_is_not_cut_off_for_its_head():
    def late(text):
        time.sleep(0.6)
        return scene(3)

    with running([small(look=late)], head_seconds=0.2) as here:
        assert [here.look().status_code for _ in range(2)] == [200, 200]
        time.sleep(0.5)
        assert here.client.get("/api/models").status_code == 200, "kept alive, and idle"


def test_who_does_not_read_does_not_hold_up_others():
    closed = []

    def generate(text, count):
        try:
            for _ in range(count):
                yield Step("b", {"layer.0": torch.ones(1, 64, 100_000)})  # 16 MB in base64
        finally:
            closed.append(True)

    with running([small("wide", generate=generate), small()], step_seconds=0.5) as here:
        body = {"model": "wide", "text": "a", "tokens": 30}
        with here.client.stream("POST", "/api/generate", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            start = time.monotonic()
            other = {"model": "small", "text": "a"}
            answer = httpx.post(f"{here.address}api/look", json=other, timeout=20)
            assert answer.status_code == 200
            assert time.monotonic() - start < 10 and closed
            last = json.loads(list(lines)[-1])
        assert last["error"]["code"] == "slow_reader" and last["error"]["limit"] == 0.5


def server():
    limits = Limits()
    return Server([small()], TraceStore(limits), limits, AccessPolicy("127.0.0.1"))


def test_threads_begin_and_end_with_the_lifespan():
    before = ours()
    made = server()
    assert ours() == before, "nothing runs yet"

    async def fails():
        async with made.lifespan(made.app()):
            assert len(ours() - before) == 1
            raise ValueError("something else failed")

    with pytest.raises(ValueError, match="something else"):
        asyncio.run(fails())
    until(lambda: ours() == before)


def test_the_event_loop_goes_on_while_the_server_closes():
    made, ticks = server(), []

    async def tick():
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)

    async def close():
        ticking = asyncio.create_task(tick())
        async with made.lifespan(made.app()):
            tile = asyncio.create_task(made._pool.run(lambda: time.sleep(0.6), "a tile"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        ticking.cancel()
        await tile

    asyncio.run(close())
    assert max(b - a for a, b in pairwise(ticks)) < 0.4


def test_tiles_alike_do_not_take_both_threads():
    async def ask():
        pool, band = TilePool(10, 20), threading.Event()
        alike = [asyncio.create_task(pool.run(lambda: band.wait(10), "band")) for _ in range(4)]
        await asyncio.sleep(0.05)
        other = await asyncio.wait_for(pool.run(lambda: "made", "another"), 5)
        band.set()
        found = await asyncio.gather(*alike)
        await asyncio.to_thread(pool.close)
        return other, found

    assert asyncio.run(ask()) == ("made", [True] * 4)
