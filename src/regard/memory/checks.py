"""Checks that units share: features of the right width and dtype, or an error that says so."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard.errors import DtypeError, RegardError, ShapeError
from regard.normalise import autocasting


def check_sizes(name: str, **sizes: int) -> None:
    """Raise where a size is not a positive whole number."""
    for argument, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise RegardError(f"{name}: {argument}={size!r}, expected a whole number from 1 on")


def check_features(
    unit: nn.Module, argument: str, tensor: Tensor, width: int, axes: tuple[str, ...]
) -> None:
    """Raise where `tensor` does not have these axes, `width` features or the unit's dtype.

    `axes` names the axes before the last; the last is called width.
    """
    name = type(unit).__name__
    expected = f"({', '.join((*axes, 'width'))})"
    if isinstance(tensor, PackedSequence):
        raise ShapeError(
            f"{name}: {argument} is a PackedSequence, expected a tensor {expected}: {argument}, "
            f"lengths = torch.nn.utils.rnn.pad_packed_sequence({argument}, batch_first=True); "
            "steps behind the end of a sequence change no output before it"
        )
    if tensor.dim() != len(axes) + 1:
        raise ShapeError(
            f"{name}: {argument} has {tensor.dim()} axes {tuple(tensor.shape)}, expected "
            f"{len(axes) + 1}: {expected}"
        )
    check_width(unit, argument, tensor, width)


def check_width(unit: nn.Module, argument: str, tensor: Tensor, width: int) -> None:
    """Raise where the last axis is not `width`, or the dtype not that of the unit's parameters."""
    name = type(unit).__name__
    if tensor.dim() == 0 or tensor.shape[-1] != width:
        size = tensor.shape[-1] if tensor.dim() else "no"
        raise ShapeError(f"{name}: {argument}: axis width has size {size}, expected {width}")
    if not tensor.is_floating_point():
        raise DtypeError(f"{name}: {argument} is {tensor.dtype}, expected floating point")
    dtype = next((parameter.dtype for parameter in unit.parameters()), tensor.dtype)
    if tensor.dtype != dtype and not autocasting(tensor.device):
        raise DtypeError(
            f"{name}: {argument} is {tensor.dtype}, expected {dtype} as the parameters; convert "
            f"one of them, as {argument}.to({dtype})"
        )


def check_broadcast(unit: nn.Module, x: Tensor, control: Tensor) -> None:
    """Raise where the axes of x and the control before the last do not broadcast."""
    leads = tuple(x.shape[:-1]), tuple(control.shape[:-1])
    for axis, (size, other) in enumerate(zip(*(reversed(lead) for lead in leads)), start=2):
        if size != other and 1 not in (size, other):
            raise ShapeError(
                f"{type(unit).__name__}: x has leading axes {leads[0]}, control {leads[1]}: axis "
                f"-{axis} has sizes {size} and {other}, expected equal ones, or 1"
            )
