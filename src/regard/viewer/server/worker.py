"""One thread that runs models, one request at a time, with a short queue in front of it."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

from regard.viewer.server.limits import Refused

_T = TypeVar("_T")
_AHEAD = 4  # events of a stream that may wait for a slow client
_END = object()


class Stopped(Exception):
    """Nobody waits for this work any more."""


class Ticket:
    """Whether somebody still waits for a piece of work; asked between its steps."""

    def __init__(self, seconds: int | float) -> None:
        self.deadline = time.monotonic() + seconds
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set() or time.monotonic() > self.deadline

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        if self.stopped:
            raise Stopped


class Worker:
    """Runs functions in one thread of its own, in the order they came."""

    def __init__(self, waiting: int, seconds: int | float) -> None:
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._waiting, self._seconds = waiting, seconds
        self._tickets: set[Ticket] = set()  # accepted and not finished; of the event loop alone
        self._thread = threading.Thread(target=self._loop, name="regard models", daemon=True)
        self._thread.start()

    @property
    def inside(self) -> int:
        """Requests that wait or run, and that somebody waits for."""
        return sum(not ticket.stopped for ticket in self._tickets)

    async def run(self, work: Callable[[Ticket], _T]) -> _T:
        """The answer of `work`; its ticket is stopped when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(self._seconds)
        answer: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            try:
                ticket.check()
                found = work(ticket)
            except BaseException as error:
                _tell(loop, _fail, answer, error)
            else:
                _tell(loop, _succeed, answer, found)

        self._accept(loop, job, ticket)
        try:
            return await asyncio.wait_for(answer, ticket.left)
        except (TimeoutError, Stopped) as error:
            raise self._late() from error
        finally:
            ticket.stop()

    async def stream(self, work: Callable[[Ticket], Generator[_T]]) -> AsyncIterator[_T]:
        """What `work` yields, as it comes; closing this stops the work at its next step."""
        loop = asyncio.get_running_loop()
        ticket = Ticket(self._seconds)
        events: asyncio.Queue[Any] = asyncio.Queue()
        room = threading.Semaphore(_AHEAD)

        def job() -> None:
            try:
                ticket.check()
                with closing(work(ticket)) as found:  # in this thread, whatever happens
                    for event in found:
                        while not room.acquire(timeout=0.1):
                            ticket.check()
                        _tell(loop, events.put_nowait, event)
                        ticket.check()
            except BaseException as error:
                _tell(loop, events.put_nowait, error)
            else:
                _tell(loop, events.put_nowait, _END)

        self._accept(loop, job, ticket)
        try:
            while (event := await asyncio.wait_for(events.get(), ticket.left)) is not _END:
                if isinstance(event, BaseException):
                    raise event
                room.release()
                yield event
        except (TimeoutError, Stopped) as error:
            raise self._late() from error
        finally:
            ticket.stop()

    def close(self, seconds: float = 10.0) -> None:
        """Finish what runs, drop what waits."""
        while not self._jobs.empty():
            self._jobs.get_nowait()
        self._jobs.put(None)
        self._thread.join(seconds)

    def stop(self) -> None:
        """Stop everything at its next step."""
        for ticket in self._tickets:
            ticket.stop()

    def _accept(
        self, loop: asyncio.AbstractEventLoop, job: Callable[[], None], ticket: Ticket
    ) -> None:
        inside = self.inside
        if inside > self._waiting:  # one runs, the others wait
            raise Refused(
                503,
                "queue_full",
                f"{self._waiting} requests are waiting already; try again in a moment",
                limit=self._waiting,
                got=inside,
                headers={"Retry-After": "2"},
            )
        self._tickets.add(ticket)

        def counted() -> None:
            try:
                job()
            finally:
                _tell(loop, self._tickets.discard, ticket)

        self._jobs.put(counted)

    def _late(self) -> Refused:
        message = f"there was no answer within {self._seconds:g} seconds; the work was dropped"
        return Refused(504, "too_slow", message, limit=self._seconds)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # what it holds is large


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Call a function in the event loop, if that still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


def _succeed(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
