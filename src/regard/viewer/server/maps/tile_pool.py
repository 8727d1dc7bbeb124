"""Threads that compute tiles and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regard.viewer.server.limits import queue_full, too_slow

_T = TypeVar("_T")
_THREADS = 2


class TilePool:
    """Runs short functions in a few threads, with a limited queue and a time limit."""

    def __init__(self, waiting: int, seconds: int | float) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="regard tiles")
        self._waiting, self._seconds, self._inside = waiting, seconds, 0
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], _T], alike: Hashable) -> _T:
        """The result of `work`; one that is too late is dropped.

        Work with the same key `alike` shares a computation: it runs in sequence, so that no thread
        idles while another computes it.
        """
        if self._inside >= self._waiting:
            raise queue_full("tiles", self._waiting, self._inside, retry_seconds=1)
        self._inside += 1
        try:
            return await asyncio.wait_for(self._in_turn(work, alike), self._seconds)
        except TimeoutError as error:
            raise too_slow(self._seconds, "try again") from error
        finally:
            self._inside -= 1

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def _in_turn(self, work: Callable[[], _T], alike: Hashable) -> _T:
        while alike in self._running:
            await asyncio.wait({self._running[alike]})
        answer = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running[alike] = answer
        try:
            return await answer
        finally:
            del self._running[alike]
