"""One thread that runs models, one request at a time, with a short queue in front of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, TypeVar

from regard.viewer.server.limits import Refusal, queue_full, too_slow

_T = TypeVar("_T")
_AHEAD = 4  # events of a stream that may wait for a slow client
_END = object()


class WorkCancelled(Exception):
    """The client of this work is gone, or its time is over."""


class Ticket:
    """A request's place in the queue: whether its client still waits, checked between steps."""

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
            raise WorkCancelled

    def checked(self, steps: Iterable[_T]) -> Iterator[_T]:
        """The steps of some work, as long as its client waits."""
        for step in steps:
            self.check()
            yield step


class Job(NamedTuple):
    """A function to run, and whose it is."""

    ticket: Ticket
    run: Callable[[], None]


class ModelQueue:
    """Runs functions in one thread, first come, first served."""

    def __init__(self, waiting: int, seconds: int | float, step_seconds: int | float) -> None:
        self._waiting, self._seconds, self._step_seconds = waiting, seconds, step_seconds
        self._jobs: deque[Job | None] = deque()
        self._changed = threading.Condition()  # of the jobs
        self._tickets: set[Ticket] = set()  # in the queue; used by the event loop only
        self._thread = threading.Thread(target=self._loop, name="regard models", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def inside(self) -> int:
        """Requests in the queue whose clients still wait."""
        return sum(not ticket.stopped for ticket in self._tickets)

    @contextmanager
    def reserve(self) -> Iterator[Ticket]:
        """A place in the queue; leaving the block removes its jobs."""
        inside = self.inside
        if inside > self._waiting:  # one runs, the others wait
            raise queue_full("requests", self._waiting, inside, retry_seconds=2)
        ticket = Ticket(self._seconds)
        self._tickets.add(ticket)
        try:
            yield ticket
        finally:
            ticket.stop()
            self._tickets.discard(ticket)
            with self._changed:
                for job in [job for job in self._jobs if job and job.ticket is ticket]:
                    self._jobs.remove(job)

    async def run(self, work: Callable[[Ticket], _T], ticket: Ticket) -> _T:
        """The result of `work`, for the holder of a ticket."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()

        def job() -> None:
            try:
                ticket.check()
                result = work(ticket)
            except BaseException as error:
                _tell(loop, _fail, answer, error)
            else:
                _tell(loop, _succeed, answer, result)

        self._put(Job(ticket, job))
        try:
            return await asyncio.wait_for(answer, ticket.left)
        except (TimeoutError, WorkCancelled) as error:
            raise too_slow(self._seconds, "the work was dropped") from error

    async def stream(self, work: Callable[[Ticket], Generator[_T]]) -> AsyncGenerator[_T]:
        """What `work` yields, as it comes; closing this stops the work at its next step."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Any] = asyncio.Queue()
        room = threading.Semaphore(_AHEAD)

        def job() -> None:
            try:
                ticket.check()
                with closing(work(ticket)) as stream:  # in this thread, whatever happens
                    for event in stream:
                        self._wait_for(room, ticket)
                        _tell(loop, events.put_nowait, event)
                        ticket.check()
            except BaseException as error:
                _tell(loop, events.put_nowait, error)
            else:
                _tell(loop, events.put_nowait, _END)

        with self.reserve() as ticket:
            self._put(Job(ticket, job))
            try:
                while (event := await asyncio.wait_for(events.get(), ticket.left)) is not _END:
                    if isinstance(event, BaseException):
                        raise event
                    room.release()
                    yield event
            except (TimeoutError, WorkCancelled) as error:
                raise too_slow(self._seconds, "the work was dropped") from error

    def close(self, seconds: float = 10.0) -> None:
        """Finish what runs, drop what waits."""
        with self._changed:
            self._jobs.clear()
        self._put(None)
        self._thread.join(seconds)

    def stop(self) -> None:
        """Stop everything at its next step."""
        for ticket in self._tickets:
            ticket.stop()

    def _put(self, job: Job | None) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def _wait_for(self, room: threading.Semaphore, ticket: Ticket) -> None:
        """Wait until a slow client takes an event, but not for long: other requests wait."""
        late = time.monotonic() + self._step_seconds
        while not room.acquire(timeout=min(0.1, self._step_seconds)):
            ticket.check()
            if time.monotonic() > late:
                message = f"no step was taken for {self._step_seconds:g} seconds; the work stopped"
                raise Refusal(408, "slow_reader", message, limit=self._step_seconds)

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            del job  # it holds large tensors

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._jobs))
            return self._jobs.popleft()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Call a function in the event loop, if it still runs."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


def _succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
