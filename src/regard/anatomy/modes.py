"""Eval mode within a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as global_hooks


@contextmanager
def evaluation_mode(model: Callable[..., Any]) -> Iterator[list[nn.Module]]:
    """Put every module that runs into eval mode; on exit each has its own mode back.

    Yields the outermost modules in the order in which they are first called. The modules of a
    plain function are known only once it calls them, so a global hook sets their mode then.

    >>> layer = nn.Dropout().train()
    >>> with evaluation_mode(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    modes: dict[nn.Module, bool] = {}
    called: list[nn.Module] = []

    def enter(module: nn.Module, args: Any = None) -> None:
        if module in modes:
            return
        called.append(module)
        for child in module.modules():
            modes.setdefault(child, child.training)
            child.training = False

    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    with ExitStack() as stack:
        if isinstance(owner, nn.Module):
            enter(owner)
        else:
            stack.callback(global_hooks.register_module_forward_pre_hook(enter).remove)
        try:
            yield called
        finally:
            for module, training in modes.items():
                module.training = training
