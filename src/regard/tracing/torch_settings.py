"""Settings of torch that a capture changes while it runs, and restores."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch

from regard.errors import RegardError
from regard.interception import LOCK

_inside = 0
_forced = False  # whether compiled code runs eagerly
_shared = ExitStack()


@contextmanager
def eager_torch() -> Iterator[None]:
    """Run compiled models eagerly, flex attention and scripts in a form that a mode can see.

    These settings are per process: the first capture changes them, the last restores them.
    """
    global _inside
    # A parameter that was cast before the capture would not be recognised.
    torch.clear_autocast_cache()
    with LOCK:
        if _inside == 0:
            _shared.enter_context(_settings())
        _inside += 1
    try:
        yield
    finally:
        with LOCK:
            _inside -= 1
            if _inside == 0:
                _shared.close()


def follow_compiler() -> None:
    """Force eager mode if the compiler was imported during the capture.

    Called before each call of a module. Inside a compiled function it is too late.
    """
    if not _forced and "torch._dynamo" in sys.modules:
        with LOCK, suppress(RegardError):
            if _inside:
                _shared.enter_context(_forced_eager())


@contextmanager
def _settings() -> Iterator[None]:
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_forced_eager())
        if "torch.nn.attention.flex_attention" in sys.modules:
            stack.enter_context(_readable_flex())
        # A script that has not run yet would be profiled under the mode, and keep the profile.
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        yield


@contextmanager
def _forced_eager() -> Iterator[None]:
    """Run compiled code eagerly."""
    global _forced
    try:
        stance = torch.compiler.set_stance("force_eager")
    except RuntimeError as error:
        raise RegardError(
            "capture: entered inside a function that torch.compile runs, where compiled code "
            "cannot be told to run eagerly; enter it outside, or mark the function with "
            "torch.compiler.disable"
        ) from error
    with stance, _without_hook_warning():
        _forced = True
        try:
            yield
        finally:
            _forced = False


@contextmanager
def _without_hook_warning() -> Iterator[None]:
    """Silence a compiled module's warning about global hooks, which are ours.

    `catch_warnings` would also undo filters that others add meanwhile.
    """
    before = list(warnings.filters)
    warnings.filterwarnings(
        "ignore", r"Using `torch.compile\(module\)` when there are global hooks"
    )
    ours = [entry for entry in warnings.filters if entry not in before]
    try:
        yield
    finally:
        for entry in ours:
            if entry in warnings.filters:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]


@contextmanager
def _readable_flex() -> Iterator[None]:
    """Flex attention outside a compiler raises under a mode unless this switch is on."""
    flex = sys.modules["torch.nn.attention.flex_attention"]
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before  # type: ignore[attr-defined]
