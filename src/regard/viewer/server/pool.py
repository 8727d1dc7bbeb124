"""A few threads that make tiles and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regard.viewer.server.limits import Refused

_T = TypeVar("_T")
_THREADS = 2


class Pool:
    """Runs short functions, so many at once, within a time."""

    def __init__(self, waiting: int, seconds: int | float) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="regard tiles")
        self._waiting, self._seconds, self._inside = waiting, seconds, 0
        self._running: dict[Hashable, asyncio.Future[Any]] = {}

    async def run(self, work: Callable[[], _T], alike: Hashable) -> _T:
        """The answer of `work`; one that is too late is dropped.

        What is `alike` needs the same things made first: it runs one after the other, so that no
        thread is idle while another makes them.
        """
        if self._inside >= self._waiting:
            raise Refused(
                503,
                "queue_full",
                f"{self._waiting} tiles are waiting already; try again in a moment",
                limit=self._waiting,
                got=self._inside,
                headers={"Retry-After": "1"},
            )
        self._inside += 1
        try:
            return await asyncio.wait_for(self._in_turn(work, alike), self._seconds)
        except TimeoutError as error:
            message = f"there was no answer within {self._seconds:g} seconds; try again"
            raise Refused(504, "too_slow", message, limit=self._seconds) from error
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
