"""A few threads that make tiles and rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from regard.viewer.server.limits import Refused

_T = TypeVar("_T")
_THREADS = 2


class Pool:
    """Runs short functions, so many at once, within a time."""

    def __init__(self, waiting: int, seconds: int | float) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="regard tiles")
        self._waiting, self._seconds, self._inside = waiting, seconds, 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """The answer of `work`; one that is too late is dropped."""
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
        answer = asyncio.get_running_loop().run_in_executor(self._threads, work)
        answer.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(answer, self._seconds)
        except TimeoutError as error:
            message = f"there was no answer within {self._seconds:g} seconds; try again"
            raise Refused(504, "too_slow", message, limit=self._seconds) from error

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _leave(self, answer: asyncio.Future[_T]) -> None:
        self._inside -= 1
