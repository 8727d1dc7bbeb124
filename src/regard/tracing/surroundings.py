"""What of torch must be different while a capture runs; everything goes back on exit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def eager_surroundings() -> Iterator[None]:
    """Compiled models run eagerly, flex attention and scripts in the form a mode can see."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(_forced_eager())
        if "torch.nn.attention.flex_attention" in sys.modules:
            stack.enter_context(_readable_flex())
        # A script that has not run yet would be profiled through us, and keep what it saw.
        stack.enter_context(torch.jit.optimized_execution(False))  # type: ignore[attr-defined]
        # A parameter cast before the capture began would not be known as one.
        torch.clear_autocast_cache()
        yield


@contextmanager
def _forced_eager() -> Iterator[None]:
    """Compiled code runs as it was written."""
    from torch._dynamo import eval_frame

    if eval_frame._stance.stance == "force_eager":  # a capture around this one
        yield
        return
    with torch.compiler.set_stance("force_eager"), _without_hook_warning():
        yield


@contextmanager
def _without_hook_warning() -> Iterator[None]:
    """A compiled module warns of global hooks, and they are ours.

    One filter comes and goes; `catch_warnings` would also undo what others do to them meanwhile.
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
    """Flex attention called outside a compiler raises under a mode, unless this switch is on."""
    flex = sys.modules["torch.nn.attention.flex_attention"]
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before  # type: ignore[attr-defined]
