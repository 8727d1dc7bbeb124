"""A server under load: 50 viewers of one trace and 10 people who run a model, for two minutes.

The trace is SmolLM2's attention over the first 1024 tokens of the licence: 30 layers of 9 heads, so
large that the page asks for tiles. Each viewer does what the page does: the page and its manifest,
then one thing after another, with a second between them as people need (0.5 to 1.5): thumbnails of
all layers once, the tiles of a head from far and from near, rows under the pointer, a column. Each
live client sends a sentence to MiniLM, opens what comes back, and waits a second.

Server and clients share this machine, each in a process of its own. The run fails when any answer
is an error or the memory of the server grows in its second half.

    python benchmarks/serve_load.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import torch
from timing import table

import regard
from regard.cli import packaged

VIEWERS, PEOPLE = 50, 10
TOKENS = 1024
CONNECTIONS = 6  # of a browser to one server
SENTENCES = [
    "The animal did not cross the street because it was too tired",
    "She poured water from the pitcher into the cup until it was full",
    "The lawyer whom the judge had praised left the court before noon and did not come back",
    "A bank of a river is not the bank where people keep their money, and yet it is a bank",
]


class Times:
    """Seconds of every answer, by what was asked, and the errors."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = defaultdict(list)
        self.errors: list[str] = []

    async def ask(self, kind: str, call: Callable[[], Coroutine[Any, Any, httpx.Response]]) -> Any:
        """One answer, timed; None for an error."""
        start = time.perf_counter()
        try:
            answer = await call()
        except httpx.HTTPError as error:
            self.errors.append(f"{kind}: {error!r}")
            return None
        self.taken[kind].append(time.perf_counter() - start)
        if answer.status_code != 200:
            self.errors.append(f"{kind}: {answer.status_code} {answer.text[:100]}")
            return None
        return answer


async def viewer(
    client: httpx.AsyncClient, name: str, times: Times, until: float, seed: int
) -> None:
    """Somebody who looks at the trace."""
    chance = random.Random(seed)
    base = f"/api/traces/{name}"
    await asyncio.sleep(chance.uniform(0, 3))
    await times.ask("page", lambda: client.get("/"))
    answer = await times.ask("manifest", lambda: client.get(base))
    if answer is None:
        return
    sites = answer.json()["sites"]
    numbers = [site["thumbnails"]["id"] for site in sites]

    async def lane(some: list[int]) -> None:
        for number in some:
            await times.ask("thumbnails", partial(client.get, f"{base}/chunks/{number}"))

    await asyncio.gather(*(lane(numbers[start::CONNECTIONS]) for start in range(CONNECTIONS)))
    while time.perf_counter() < until:
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        layer = chance.randrange(len(sites))
        asked = {"layer": layer, "head": chance.randrange(sites[layer]["heads"])}
        asked |= {"unit": chance.choice(["pieces", "words"])}
        await look_closer(client, base, asked, times, chance)


async def look_closer(
    client: httpx.AsyncClient, base: str, asked: dict[str, Any], times: Times, chance: random.Random
) -> None:
    """A head from far, then a corner of it from near, then some rows and a column of it."""

    def get(kind: str, **more: int) -> Any:
        return times.ask(kind, lambda: client.get(f"{base}/{kind}", params={**asked, **more}))

    await get("tile", level=2, row=0, column=0)
    await asyncio.sleep(chance.uniform(0.5, 1.5))
    row = chance.randrange(2)
    near = [get("tile", level=0, row=r, column=c) for r in (row, row + 1) for c in (0, 1)]
    await asyncio.gather(*near)
    for _ in range(3):
        await asyncio.sleep(chance.uniform(0.1, 0.4))
        await get("row", row=chance.randrange(256 * row, 256 * row + 256))
    await get("column", column=chance.randrange(256))


async def person(client: httpx.AsyncClient, times: Times, until: float, seed: int) -> None:
    """Somebody who runs a model."""
    chance = random.Random(seed)
    while time.perf_counter() < until:
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        body = {"model": "minilm", "text": chance.choice(SENTENCES)}
        answer = await times.ask("look", partial(client.post, "/api/look", json=body))
        if answer is None:
            continue
        found = answer.json()
        chunk = found["sites"][0]["thumbnails"]["id"]
        path = f"/api/traces/{found['id']}/chunks/{chunk}"
        await times.ask("chunk", partial(client.get, path))


def processor_time(process: int) -> float:
    """Seconds that the server has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def memory(process: int, until: float) -> list[tuple[float, float]]:
    """Seconds, and megabytes that the server holds, every half second."""
    found, start = [], time.perf_counter()
    while time.perf_counter() < until:
        status = Path(f"/proc/{process}/status").read_text()
        size = int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1000  # type: ignore[index]
        found.append((time.perf_counter() - start, size))
        await asyncio.sleep(0.5)
    return found


async def load(
    address: str, process: int, seconds: float
) -> tuple[Times, list[tuple[float, float]]]:
    """Everybody at once, each with as many connections as a browser has."""
    times = Times()
    limits = httpx.Limits(max_connections=CONNECTIONS)
    name = httpx.get(f"{address}api/traces").json()["traces"][0]["id"]
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=address, timeout=60, limits=limits, verify=False)
            )
            for _ in range(VIEWERS + PEOPLE)
        ]
        until = time.perf_counter() + seconds
        everybody = [
            viewer(client, name, times, until, seed)
            if seed < VIEWERS
            else person(client, times, until, seed)
            for seed, client in enumerate(clients)
        ]
        sizes, *_ = await asyncio.gather(memory(process, until), *everybody)
    return times, sizes


def save_trace(path: Path) -> None:
    """SmolLM2 over the licence."""
    loaded = packaged.smollm2()
    text = (Path(__file__).parent.parent / "LICENSE").read_text()
    encoded = loaded.encode(text)
    ids = encoded.inputs["input_ids"][:, :TOKENS]
    with torch.inference_mode():
        trace = regard.trace(loaded.model, ids)
    trace.with_tokens(encoded.tokens[:TOKENS]).save(path)


def report(times: Times, sizes: list[tuple[float, float]], seconds: float) -> bool:
    """Print what was measured; whether it is well."""
    rows = []
    total = sum(len(taken) for taken in times.taken.values())
    for kind, taken in [*times.taken.items(), ("all", [*chain(*times.taken.values())])]:
        ordered = sorted(taken)
        p50, p95 = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95))
        figures = [f"{1000 * value:.0f}" for value in (p50, p95, ordered[-1])]
        rows.append([kind, str(len(taken)), *figures])
    title = f"{VIEWERS} viewers and {PEOPLE} live clients for {seconds:.0f} s, milliseconds"
    table(title, ["answer", "number", "p50", "p95", "longest"], rows)
    print(f"\n{total / seconds:.0f} answers a second, {len(times.errors)} errors")
    for error in times.errors[:5]:
        print(f"  {error}")
    quarters = [
        statistics.mean(s for t, s in sizes if share <= t / sizes[-1][0] * 4 <= share + 1)
        for share in range(4)
    ]
    shown = ", ".join(f"{size:.0f}" for size in quarters)
    print(f"memory of the server by quarter of the time, MB: {shown}")
    flat = quarters[3] <= quarters[1] * 1.05
    if seconds >= 60 and not flat:
        print("memory grew by more than 5 % in the second half")
    return not times.errors and (flat or seconds < 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="15 seconds instead of 120")
    seconds = 15.0 if parser.parse_args().quick else 120.0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "licence.safetensors"
        with packaged.quietly():
            save_trace(path)
        command = [sys.executable, "-m", "regard", "serve", "minilm", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--trace", str(path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            address = re.search(r"http://\S+", line)
            if address is None:
                raise SystemExit("the server did not start")
            before, own = processor_time(process.pid), time.process_time()
            times, sizes = asyncio.run(load(address[0], process.pid, seconds))
            print(
                f"\nprocessor time: server {processor_time(process.pid) - before:.0f} s, clients "
                f"{time.process_time() - own:.0f} s, of {os.cpu_count()} × {seconds:.0f} s"
            )
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)
    if not report(times, sizes, seconds):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
