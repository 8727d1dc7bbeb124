"""Functions around the calls of a module.

torch keeps a slot in each module for a compiled call, which `__call__` runs instead of its own. A
function there can clean up in a `finally`. Hooks cannot: torch skips those after a call when the
exception is no `Exception`, such as an interrupt or the cancellation of a task. Unlike a hook, the
slot leaves fast paths on, and is neither pickled nor deep-copied.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from regard.interception.process import LOCK

_SLOT = "_compiled_call_impl"
_CALL = nn.Module._wrapped_call_impl.__code__

#: Takes the module, the function to proceed with, and the arguments of the call.
Wrapper = Callable[..., Any]


class Calls:
    """The content of the slot of one module."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.before: Callable[..., Any] | None = getattr(module, _SLOT)
        self.arounds: tuple[Wrapper, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        callee = _callee()  # not by its truth: a module may have a length
        module = self.module if callee is None else callee
        if module is not self.module:  # a replica that shares the module's attributes
            return module._call_impl(*args, **kwargs)
        proceed = self.before or module._call_impl
        for around in self.arounds:  # the last one is the outermost
            proceed = functools.partial(around, module, proceed)
        return proceed(*args, **kwargs)

    def __deepcopy__(self, _: Any) -> None:
        """A copy of the module has an empty slot."""

    def __reduce__(self) -> Any:
        return _empty, ()


def _empty() -> None:
    """The slot of a copy is empty."""


def wrap_calls(module: nn.Module, around: Wrapper) -> None:
    """Put a function around the calls of a module, outside of earlier ones."""
    with LOCK:
        calls = module.__dict__.get(_SLOT)
        if not isinstance(calls, Calls) or calls.module is not module:
            calls = Calls(module)
            module.__dict__[_SLOT] = calls
        calls.arounds = (*calls.arounds, around)


def unwrap_calls(module: nn.Module, around: Wrapper) -> None:
    """Remove it; the slot is restored with the last one."""
    with LOCK:
        calls = module.__dict__.get(_SLOT)
        if not isinstance(calls, Calls):  # somebody compiled the module meanwhile
            return
        calls.arounds = tuple(other for other in calls.arounds if other != around)
        if not calls.arounds:
            del module.__dict__[_SLOT]
            if calls.before is not None:
                module.__dict__[_SLOT] = calls.before


def _callee() -> Any:
    """The module whose call is running."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code is not _CALL:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]
