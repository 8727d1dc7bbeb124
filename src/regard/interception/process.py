"""What a process has once: a lock for it, and what becomes of it in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Of everything that belongs to the process. A signal handler may come in between, so the thread
#: that holds it may take it again; a fork waits for it, so that no child inherits it held.
LOCK = threading.RLock()

os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def in_forked_child(forget: Callable[[], None]) -> None:
    """Call a function first of all in every forked child."""
    os.register_at_fork(after_in_child=forget)


def pass_signals_on(error: Exception) -> None:
    """Raise an error again that a signal handler raised: it is meant for the program.

    As a handler of SIGALRM does that limits the time of a call. It runs between any two lines, of
    ours too, where errors of our own are caught. It is told by its argument: the frame it comes
    after in the traceback. What is registered tells less: it may be wrapped, or gone meanwhile.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for value in trace.tb_frame.f_locals.values():
            if value is interrupted or (type(value) is tuple and interrupted in value):
                raise error
