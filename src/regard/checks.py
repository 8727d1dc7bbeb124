"""Checks of sizes and tensors, whose errors say what was passed, what was expected and where.

`argument` is its name in errors, as "EncoderBlock: x".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from regard.errors import DtypeError, RegardError, ShapeError
from regard.softmax import autocasting


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raise unless each size is a positive whole number."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise RegardError(f"{owner}: {name}={size!r}, expected a whole number from 1 on")


def check_axes(
    argument: str, tensor: Tensor, axes: Mapping[str, int | None], **reasons: str
) -> None:
    """Raise unless a tensor has these axes, each of its size, or of any where that is None.

    `reasons` say of an axis where its size comes from: `batch="as x"`.
    """
    if tensor.dim() != len(axes):
        raise ShapeError(
            f"{argument} has {tensor.dim()} axes {tuple(tensor.shape)}, expected {len(axes)}: "
            f"({', '.join(axes)})"
        )
    for (axis, expected), size in zip(axes.items(), tensor.shape):
        if expected is not None and size != expected:
            reason = f" {reasons[axis]}" if axis in reasons else ""
            raise ShapeError(
                f"{argument}: axis {axis} has size {size}, expected {expected}{reason}"
            )


def check_features(
    argument: str, tensor: Tensor, axes: Mapping[str, int | None], **reasons: str
) -> None:
    """`check_axes` of a tensor that must be floating point."""
    if not tensor.is_floating_point():
        raise DtypeError(f"{argument} is {tensor.dtype}, expected floating point")
    check_axes(argument, tensor, axes, **reasons)


def check_dtype(argument: str, tensor: Tensor, other: Tensor, name: str) -> None:
    """Raise unless a tensor has the dtype of another one, which errors call `name`."""
    if tensor.dtype != other.dtype:
        raise DtypeError(f"{argument} is {tensor.dtype}, expected {other.dtype} as {name}")


def check_module_dtype(argument: str, tensor: Tensor, module: nn.Module) -> None:
    """Raise unless a tensor has the dtype of a module's parameters, or autocast converts it."""
    parameter = _first_parameter(module)
    if parameter is None or tensor.dtype == parameter.dtype or autocasting(tensor.device):
        return
    raise DtypeError(
        f"{argument} is {tensor.dtype}, the parameters are {parameter.dtype}; convert one, as "
        f"module.to({tensor.dtype})"
    )


def refuse_nested(owner: str, **tensors: Tensor | None) -> None:
    """Raise where a tensor is nested: attention here is over padded batches."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.is_nested:
            raise ShapeError(
                f"{owner}: {name} is a nested tensor, expected a padded one: "
                f"torch.nested.to_padded_tensor({name}, 0.0), and mask=masks.lengths(...)"
            )


def _first_parameter(module: nn.Module) -> nn.Parameter | None:
    """`next(module.parameters(), None)` in a tenth of the time, which a decode step would feel."""
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    for child in module._modules.values():
        parameter = None if child is None else _first_parameter(child)
        if parameter is not None:
            return parameter
    return None
