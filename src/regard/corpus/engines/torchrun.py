"""Shards divided among the processes that torchrun starts.

Ranks do not talk to each other: each saves its shards in the folder of the run, and waits until
those of the others are there. So there is no process group that could hang, or that a restart would
have to build again. A rank that waits sees by a file that another one is alive.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from regard.corpus.corpus import Shard
from regard.corpus.engines.base import Engine, Task
from regard.corpus.run_folder import RunFolder
from regard.errors import RegardError

BEAT = 2.0  # seconds between signs of life
SILENCE = 120.0  # seconds without one after which a rank is taken for dead
START = 1800.0  # seconds that a rank may come later than another, loading its model
_LOOK = 0.2  # seconds between looks at the folder


class Torchrun(Engine):
    """Each rank takes every `world`-th shard; all of them return the whole collection."""

    name = "torchrun"
    needs_out = True

    def __init__(self) -> None:
        self.rank, self.world = _number("RANK"), _number("WORLD_SIZE")
        if not 0 <= self.rank < self.world:
            raise RegardError(f"collect: RANK={self.rank}, expected 0 to {self.world - 1}")
        self.leads = self.rank == 0

    def begin(self, folder: RunFolder, settings: Mapping[str, Any], resume: bool) -> None:
        """Rank 0 makes the folder; others wait for it."""
        if self.leads:
            folder.begin(settings, resume)
            return
        others = Others(folder)
        while not folder.manifest.exists():
            others.check(0, f"there is no {folder.manifest}")
            time.sleep(_LOOK)
        folder.check(settings)

    def fill(self, task: Task, folder: RunFolder, advance: Callable[[float], None]) -> int:
        theirs: list[tuple[Shard, int]] = []
        others, number = Others(folder), 0
        with alive(sign_of(folder, self.rank)):
            with task.observing() as observed:
                for shard in task.corpus.shards():
                    number += 1
                    if shard.number % self.world != self.rank:
                        theirs.append((shard._replace(documents=[]), len(shard.documents)))
                        continue
                    if not folder.has(shard):
                        folder.save(shard, observed(shard))
                    advance(len(shard.documents))
            for shard, documents in theirs:
                while not folder.has(shard):
                    others.check(shard.number % self.world, f"shard {shard.number} is missing")
                    time.sleep(_LOOK)
                advance(documents)
        return number


def sign_of(folder: RunFolder, rank: int) -> Path:
    """The file in which a rank gives signs of life."""
    return folder.path / f"rank-{rank}.alive"


@contextmanager
def alive(sign: Path) -> Iterator[None]:
    """Give signs of life."""
    ended = Event()

    def beat() -> None:
        number = 0
        while True:
            sign.write_text(f"{os.getpid()} {number}")
            number += 1
            if ended.wait(BEAT):
                return

    thread = Thread(target=beat, name="regard-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        sign.unlink(missing_ok=True)


class Others:
    """Notices that a rank died. Signs of an earlier run do not change, and count as none."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder, self.start = folder, time.monotonic()
        self.seen: dict[int, tuple[str, float, float]] = {}  # sign, since when, patience

    def check(self, rank: int, waiting: str) -> None:
        """An error if a rank has given no sign of life for long.

        Args:
            rank: who is waited for.
            waiting: what is missing.
        """
        sign, now = "", time.monotonic()
        with suppress(OSError):  # it is not there, or being replaced
            sign = sign_of(self.folder, rank).read_text()
        before, since, patience = self.seen.setdefault(rank, (sign, self.start, START))
        if sign != before:
            self.seen[rank] = sign, now, SILENCE
        elif now - since > patience:
            raise RegardError(
                f"collect: {waiting}, and rank {rank} has given no sign of life for "
                f"{patience:.0f} s: it has died, or does not see {self.folder.path}; shards that "
                "are finished are kept, run again with resume=True"
            )


def _number(variable: str) -> int:
    value = os.environ.get(variable, "")
    if not value.isdecimal():
        raise RegardError(
            f"collect: engine='torchrun' needs {variable}, which is {value or 'not set'!r}: start "
            "the script by torchrun --nproc-per-node 2 script.py"
        )
    return int(value)
