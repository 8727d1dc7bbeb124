"""Wrappers around models and modules, and module paths without them.

`torch.compile`, FSDP and activation checkpointing insert a module whose only child has a name of
its own; `nn.DataParallel` and DDP hold the model as `module`. Names of sites leave both out.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

#: Hold the whole model as `module`.
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_INSERTED = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_OTHERS = ("FullyShardedDataParallel", "OptimizedModule")  # by name: importing them is slow


def is_wrapper(model: nn.Module) -> bool:
    """Whether this wraps a model, for several devices or because it is compiled."""
    return isinstance(model, PARALLEL) or type(model).__name__ in _OTHERS


def inside_parallel(model: nn.Module) -> nn.Module:
    """The model inside torch's wrappers for several devices."""
    while isinstance(model, PARALLEL):
        model = model.module
    return model


def plain_path(path: str) -> str:
    """A module's path without the names that wrappers insert.

    >>> plain_path("layers.0._orig_mod.attention")
    'layers.0.attention'
    """
    if not any(name[:-1] in path for name in _INSERTED):
        return path
    path += "."
    for name in _INSERTED:
        path = path.replace(name, "")
    return path.removesuffix(".")


def plain_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules and their paths as `regard.capture` names them."""
    for path, module in inside_parallel(model).named_modules():
        yield plain_path(path), module
