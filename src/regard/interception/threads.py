"""Which threads belong to a block: the one that opened it, and those started or given work there.

A thread inherits the open blocks of the one that starts it. A task of a `ThreadPoolExecutor` has
those of the thread that submits it, whichever worker runs it, and the workers inherit nothing:
one pool may serve many. A thread with no such relation belongs to no block of another thread.
Work that reaches an older thread by another road, such as a queue, cannot be told from its own.

`Thread.start` and `ThreadPoolExecutor.submit` are wrapped while a block is open in the process.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as executor
from typing import Any
from weakref import WeakKeyDictionary

_Blocks = dict["Block", Any]


class Block:
    """A `with` that counts in threads that are started inside it too.

    `context` is a value of each thread; a new one begins with that of the thread it came from.
    `on_hand_over` is called before another thread gets to belong to the block.
    """

    def __init__(self, on_hand_over: Callable[[], None] = lambda: None) -> None:
        self.on_hand_over = on_hand_over

    def open(self, context: Any = None) -> None:
        """Begin, in this thread."""
        _here.blocks = {**_blocks(), self: context}
        _wrappers.hold(self)

    def close(self) -> None:
        """End, in every thread."""
        _wrappers.release(self)
        _here.blocks = {one: context for one, context in _blocks().items() if one is not self}

    def here(self) -> bool:
        """Whether this thread belongs to the block."""
        return self in _blocks()

    @property
    def context(self) -> Any:
        return _blocks().get(self)

    @context.setter
    def context(self, value: Any) -> None:
        _blocks()[self] = value


class _Here(threading.local):
    blocks: _Blocks | None = None


_here = _Here()
_inherited: WeakKeyDictionary[threading.Thread, _Blocks] = WeakKeyDictionary()


def _blocks() -> _Blocks:
    blocks = _here.blocks
    if blocks is None:
        blocks = _inherited.pop(threading.current_thread(), {})
        _here.blocks = blocks
    return blocks


def _to_hand_over() -> _Blocks:
    blocks = {block: context for block, context in _blocks().items() if block in _wrappers.open}
    for block in blocks:
        block.on_hand_over()
    return blocks


class _Wrappers:
    """Wrappers of `start` and `submit`: there while a block is open, put back after the last."""

    def __init__(self) -> None:
        self.open: set[Block] = set()
        self._lock = threading.Lock()
        self._before: list[tuple[type, str, Any, Any]] = []

    def hold(self, block: Block) -> None:
        with self._lock:
            if not self.open:
                self._wrap(threading.Thread, "start", _start)
                self._wrap(ThreadPoolExecutor, "submit", _submit)
            self.open.add(block)

    def release(self, block: Block) -> None:
        with self._lock:
            self.open.discard(block)
            if not self.open:
                # Where somebody has wrapped ours meanwhile it stays, and does nothing.
                self._before = [entry for entry in self._before if not _put_back(*entry)]

    def _wrap(self, owner: type, name: str, wrapper: Callable[[Any], Any]) -> None:
        """In place, unless ours is there still, wrapped by somebody else."""
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
    """A task in the blocks of the thread that submitted it."""
    own = _blocks()
    _here.blocks = dict(blocks)
    try:
        return task(*args, **kwargs)
    finally:
        _here.blocks = own
