"""Which threads belong to a block: the one that opened it, and those started or given work there.

A thread inherits the open blocks of the one that starts it. A task of a `ThreadPoolExecutor` has
those of the thread that submits it, whichever worker runs it; workers inherit nothing, since one
pool may serve many. Other threads belong to no block of another thread. Work that reaches an older
thread in another way, such as a queue, cannot be distinguished from its own.

Coroutines work the same way: open blocks are in a context variable, which a task inherits from its
creator. A block that was opened outside an event loop counts everywhere in its thread.

`Thread.start` and `ThreadPoolExecutor.submit` are wrapped while a block is open in the process.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as executor
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from regard.interception.process import LOCK

_Blocks = dict["Block", Any]


class Block:
    """A scope that includes threads and tasks started inside it.

    `context` is a value per thread or task, inherited from its creator. `on_hand_over` is called
    before another thread joins the block.
    """

    def __init__(self, on_hand_over: Callable[[], None] = lambda: None) -> None:
        self.on_hand_over = on_hand_over
        self.in_task = False  # whether its thread may run tasks outside it
        self._home = 0

    def open(self, context: Any = None) -> None:
        """Begin, in this thread and task."""
        self._home = threading.get_ident()
        self.in_task = asyncio._get_running_loop() is not None
        _here.set(_open_blocks() | {self: context})
        _wrappers.hold(self)

    def close(self) -> None:
        """End, in every thread."""
        _wrappers.release(self)
        _here.set(_open_blocks())

    def here(self) -> bool:
        """Whether this thread and task belong to the block."""
        everywhere = not self.in_task and threading.get_ident() == self._home
        return everywhere or self in _blocks()

    @property
    def context(self) -> Any:
        return _blocks().get(self)

    @context.setter
    def context(self, value: Any) -> None:
        _here.set(_blocks() | {self: value})


_here: ContextVar[_Blocks | None] = ContextVar("blocks", default=None)
_inherited: WeakKeyDictionary[threading.Thread, _Blocks] = WeakKeyDictionary()


def _blocks() -> _Blocks:
    """The blocks of this thread and task; shared with others, so never mutated."""
    blocks = _here.get()
    if blocks is None:
        blocks = _inherited.get(threading.current_thread(), {})
        _here.set(blocks)
    return blocks


def _open_blocks() -> _Blocks:
    return {block: context for block, context in _blocks().items() if block in _wrappers.open}


def _to_hand_over() -> _Blocks:
    blocks = _open_blocks()
    for block in blocks:
        block.on_hand_over()
    return blocks


class _Wrappers:
    """Wraps `start` and `submit` while a block is open."""

    def __init__(self) -> None:
        self.open: set[Block] = set()
        self._before: list[tuple[type, str, Any, Any]] = []

    def hold(self, block: Block) -> None:
        with LOCK:
            if not self.open:
                self._wrap(threading.Thread, "start", _start)
                self._wrap(ThreadPoolExecutor, "submit", _submit)
            self.open.add(block)

    def release(self, block: Block) -> None:
        with LOCK:
            self.open.discard(block)
            if not self.open:
                # If someone wrapped ours meanwhile, it stays and does nothing.
                self._before = [entry for entry in self._before if not _put_back(*entry)]

    def _wrap(self, owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Install a wrapper, unless ours is still there, wrapped by someone else."""
        before = getattr(owner, name)
        if any(entry[:2] == (owner, name) for entry in self._before):
            if before is not self._original(owner, name):
                return
            self._before = [entry for entry in self._before if entry[:2] != (owner, name)]
        ours = functools.wraps(before)(wrapper(before))
        setattr(owner, name, ours)
        self._before.append((owner, name, before, ours))

    def _original(self, owner: type, name: str) -> Any:
        return next(entry[2] for entry in self._before if entry[:2] == (owner, name))


_wrappers = _Wrappers()


def _put_back(owner: type, name: str, before: Any, ours: Any) -> bool:
    if owner.__dict__.get(name) is not ours:
        return False
    setattr(owner, name, before)
    return True


def _start(before: Any) -> Any:
    def start(thread: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        if _wrappers.open and getattr(thread, "_target", None) is not executor._worker:
            blocks = _to_hand_over()
            if blocks:
                _inherited[thread] = blocks
        return before(thread, *args, **kwargs)

    return start


def _submit(before: Any) -> Any:
    def submit(pool: Any, task: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if _wrappers.open:
            task = functools.partial(_run, _to_hand_over(), task)
        return before(pool, task, *args, **kwargs)

    return submit


def _run(blocks: _Blocks, task: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a task in the blocks of the thread that submitted it."""
    own = _here.set(blocks)
    try:
        return task(*args, **kwargs)
    finally:
        _here.reset(own)
