"""What reuse layers refuse, with the place, the size found and the size expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.errors import DtypeError, RegardError, ShapeError
from regard.normalise import autocasting
from regard.reuse.source import SIDES, Side, Source


def at_least_one(place: str, **numbers: Any) -> None:
    """Raise where a size is no whole number from 1 on."""
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise RegardError(f"{place}: {name}={number!r}, expected a whole number from 1 on")


def check_features(
    place: str,
    features: Tensor,
    width: int,
    source: Source,
    side: Side,
    *,
    offered: Sequence[Side] = SIDES,
) -> None:
    """Raise where features (batch, position, width) do not fit; names axis, size, expectation."""
    if features.dim() != 3:
        raise ShapeError(
            f"{place}: features have {features.dim()} axes {tuple(features.shape)}, expected 3: "
            "(batch, position, width)"
        )
    if not features.is_floating_point():
        raise DtypeError(f"{place}: features are {features.dtype}, expected floating point")
    if features.shape[2] != width:
        raise ShapeError(
            f"{place}: features: axis width has size {features.shape[2]}, expected {width}"
        )
    batch, _, queries, keys = source.shape
    if features.shape[0] != batch:
        raise ShapeError(
            f"{place}: features: axis batch has size {features.shape[0]}, expected {batch} as in "
            f"{source.name}"
        )
    if side == "self":
        check_same_positions(place, source, offered)
    size, axis = (keys, "keys") if side == "key" else (queries, "queries")
    if features.shape[1] != size:
        step = " (in a step of decoding: of all positions so far)" if side == "key" else ""
        raise ShapeError(
            f"{place}: features: axis position has size {features.shape[1]}, expected {size}, the "
            f"{axis} of {source.name}{step if features.shape[1] == queries else ''}"
        )


def check_dtype(place: str, features: Tensor, parameter: Tensor) -> None:
    """Raise where features have another dtype than the parameters, unless autocast sees to it."""
    if features.dtype != parameter.dtype and not autocasting(features.device):
        raise DtypeError(
            f"{place}: features are {features.dtype}, the parameters are {parameter.dtype}; "
            f"convert one, as module.to({features.dtype})"
        )


def check_same_positions(place: str, source: Source, offered: Sequence[Side] = SIDES) -> None:
    """Raise where queries and keys cannot be the same positions; `offered` are the sides to take.

    An attention whose keys were passed apart is cross-attention, however many there are.
    """
    _, _, queries, keys = source.shape
    if not source.crosses and queries == keys:
        return
    sides = " or ".join(f"side={side!r}" for side in offered if side != "self")
    what, so = "has ", f"For cross-attention, or a step of decoding with a state, say {sides}"
    if source.crosses:
        what, so = "is cross-attention, ", f"Say {sides}"
        if queries == keys:
            so += "; if they are the same positions all the same, pass the weights as a tensor"
    raise ShapeError(
        f"{place}: side='self' needs queries and keys that are the same positions; "
        f"{source.name} {what}{queries} queries × {keys} keys. {so}"
    )


def check_heads(place: str, source: Source, n_heads: int) -> None:
    """Raise where an attention has another number of heads than a module was made for."""
    if source.shape.heads != n_heads:
        raise ShapeError(
            f"{place}: {source.name}: axis head has size {source.shape.heads}, expected {n_heads}"
        )
