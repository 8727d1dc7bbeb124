"""Checks that units share: features of the right width and dtype, or an error that says so."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from regard import checks
from regard.errors import ShapeError


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
    place = f"{name}: {argument}"
    checks.refuse_nested(name, **{argument: tensor})
    checks.check_features(place, tensor, {**dict.fromkeys(axes), "width": width})
    checks.check_module_dtype(place, tensor, unit)


def check_width(unit: nn.Module, argument: str, tensor: Tensor, width: int) -> None:
    """Raise where the last axis is not `width`, or the dtype not that of the unit's parameters."""
    axes = tuple(f"axis {number}" for number in range(max(0, tensor.dim() - 1)))
    check_features(unit, argument, tensor, width, axes)


def check_broadcast(unit: nn.Module, x: Tensor, control: Tensor) -> None:
    """Raise where the axes of x and the control before the last do not broadcast."""
    leads = tuple(x.shape[:-1]), tuple(control.shape[:-1])
    for axis, (size, other) in enumerate(zip(*(reversed(lead) for lead in leads)), start=2):
        if size != other and 1 not in (size, other):
            raise ShapeError(
                f"{type(unit).__name__}: x has leading axes {leads[0]}, control {leads[1]}: axis "
                f"-{axis} has sizes {size} and {other}, expected equal ones, or 1"
            )
