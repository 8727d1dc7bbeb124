"""Gates of timm, read by the names of their parts, so that timm itself is not needed."""

from __future__ import annotations

from torch import nn

from regard.errors import RegardError
from regard.vision.gate import Bottleneck


def check_class(name: str, module: nn.Module, *classes: str) -> None:
    """Raise unless a module is of one of these classes of timm: others have parts of the same
    names and compute something else."""
    got = type(module).__name__
    if got not in classes:
        raise RegardError(f"{name}.from_timm: got {got}, expected timm's {' or '.join(classes)}")


def child_of(name: str, module: nn.Module, *names: str) -> nn.Module:
    """A part of a module by the names that timm's classes give it."""
    for candidate in names:
        child = getattr(module, candidate, None)
        if isinstance(child, nn.Module):
            return child
    got = ", ".join(child for child, _ in module.named_children())
    raise RegardError(
        f"{name}.from_timm: {type(module).__name__} has the parts {got}, expected "
        f"{' or '.join(names)}"
    )


def convolution(name: str, module: nn.Module, *names: str) -> nn.Conv2d:
    """A convolution of a module, which must be one."""
    layer = child_of(name, module, *names)
    if not isinstance(layer, nn.Conv2d):
        raise RegardError(
            f"{name}.from_timm: {names[0]} is {type(layer).__name__}, expected a Conv2d"
        )
    return layer


def load(bottleneck: Bottleneck, narrow: nn.Conv2d, widen: nn.Conv2d) -> None:
    """Copy two layers into a bottleneck, with their dtype and device."""
    bottleneck.to(narrow.weight.device, narrow.weight.dtype)
    bottleneck.narrow.load_state_dict(narrow.state_dict())
    bottleneck.widen.load_state_dict(widen.state_dict())
