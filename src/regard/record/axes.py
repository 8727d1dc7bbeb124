"""Axes by name: weights that lie in any order, brought into (batch, head, query, key)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from regard.errors import RegardError, ShapeError

AXES = ("batch", "head", "query", "key")
_NAMES = r"\([^()]*\)|[^\s(),]+"  # a group in brackets, or one name


def in_order(
    weights: Tensor,
    axes: str,
    *,
    order: Sequence[str] = AXES,
    sizes: Mapping[str, int] | None = None,
) -> Tensor:
    """Weights with their axes in `order`; those that are not named have size 1.

    Args:
        weights: as they lie. Axes of size 1 in front of the named ones need no name.
        axes: their names as they lie, as "head batch query key"; several that lie in one axis
            are in brackets, as "(batch head) query key"; 1 stands for an axis of size 1.
        order: names there can be; 'query' and 'key' there must be.
        sizes: of axes in brackets, all but one of each pair at least.
    """
    if not isinstance(axes, str):
        raise RegardError(f"axes={axes!r}, expected words in a string, as 'head batch query key'")
    groups = [name.strip("()").replace(",", " ").split() for name in re.findall(_NAMES, axes)]
    lead = weights.dim() - len(groups)
    if lead < 0 or math.prod(weights.shape[:lead]) != 1:
        raise ShapeError(f"axes={axes!r} names {len(groups)} axes of {weights.dim()}")
    names = [name for group in groups for name in group if group != ["1"]]
    if len(set(names)) < len(names) or not {"query", "key"} <= set(names) <= set(order):
        others = ", ".join(repr(name) for name in order if name not in ("query", "key"))
        raise ShapeError(
            f"axes={axes!r}: expected 'query' and 'key' and, where they are there, {others}, "
            "each once"
        )
    sizes = sizes or {}
    folded = {name for group in groups if len(group) > 1 for name in group}
    for name in sizes:
        if name not in folded:
            raise ShapeError(f"{name}={sizes[name]}: axes={axes!r} has no such axis in brackets")
    shape: list[int] = []
    for group, size in zip(groups, weights.shape[lead:]):
        if group == ["1"] and size != 1:
            raise ShapeError(f"axes={axes!r}: the axis called 1 has size {size}")
        shape += [] if group == ["1"] else _unfolded(group, size, sizes)
    named = [name for name in order if name in names]
    weights = weights.reshape(shape).permute([names.index(name) for name in named])
    for axis, name in enumerate(order):
        if name not in names:
            weights = weights.unsqueeze(axis)
    return weights


def _unfolded(group: Sequence[str], size: int, sizes: Mapping[str, int]) -> list[int]:
    """Sizes of the axes that lie in one; that of one follows from the others."""
    open_axes = [name for name in group if name not in sizes]
    if len(open_axes) > 1:
        raise ShapeError(
            f"({' '.join(group)}) has size {size}: say the size of one, as {group[-1]}=4"
        )
    told = [sizes[name] for name in group if name in sizes]
    rest = math.prod(told)
    if rest < 1 or size % rest or (not open_axes and rest != size):
        raise ShapeError(
            f"({' '.join(group)}) has size {size}, which is no multiple of "
            f"{', '.join(f'{name}={sizes[name]}' for name in group if name in sizes)}"
        )
    return [sizes.get(name, size // rest) for name in group]
