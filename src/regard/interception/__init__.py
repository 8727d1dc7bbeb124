"""Hooks for capture, edit and graft: kernels, module calls, threads, process state."""

from regard.interception.calls import Calls, unwrap_calls, wrap_calls
from regard.interception.process import LOCK, in_forked_child, pass_signals_on
from regard.interception.thread_local_kernels import (
    OPERATORS,
    SPELLINGS,
    Interceptor,
    Listener,
    Operator,
    available,
    changes,
    intercepted,
    intercepting,
    listen,
    note_change,
    silent,
    unlisten,
)
from regard.interception.thread_ownership import Block

__all__ = [
    "LOCK",
    "OPERATORS",
    "SPELLINGS",
    "Block",
    "Calls",
    "Interceptor",
    "Listener",
    "Operator",
    "available",
    "changes",
    "in_forked_child",
    "intercepted",
    "intercepting",
    "listen",
    "note_change",
    "pass_signals_on",
    "silent",
    "unlisten",
    "unwrap_calls",
    "wrap_calls",
]
