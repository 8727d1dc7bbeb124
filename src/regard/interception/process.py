"""Process-wide state: its lock, forks, and errors that signal handlers raise."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Guards all process-wide state. Reentrant, for signal handlers; a fork waits for it, so that no
#: child inherits it locked.
LOCK = threading.RLock()

os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def in_forked_child(forget: Callable[[], None]) -> None:
    """Call a function at the start of every forked child."""
    os.register_at_fork(after_in_child=forget)


def pass_signals_on(error: Exception) -> None:
    """Raise an error again if a signal handler raised it, as a SIGALRM timeout does.

    Handlers run between any two lines, also where our own errors are caught. A handler is
    recognised by its frame argument, which is the frame before it in the traceback; the registered
    handler would not do, as it may be wrapped or replaced.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for value in trace.tb_frame.f_locals.values():
            if value is interrupted or (type(value) is tuple and interrupted in value):
                raise error
