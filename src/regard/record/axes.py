"""Named axes: weights in any order brought into (batch, head, query, key); sums of their rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.types import Kind

AXES = ("batch", "head", "query", "key")
_AT_ONCE = 1 << 22  # the most weights that are summed at once
_KINDS = "say what the rows are, as kind='partial' (at most 1) or kind='signed'"
_NAMES = r"\([^()]*\)|[^\s(),]+"  # a group in brackets, or one name


def in_order(
    weights: Tensor,
    axes: str,
    *,
    order: Sequence[str] = AXES,
    sizes: Mapping[str, int] | None = None,
) -> Tensor:
    """Weights with their axes in `order`; axes without a name have size 1.

    Args:
        weights: weights with axes in any order. Axes of size 1 need no name.
        axes: the names of their axes, as "head batch query key"; merged axes go in brackets, as
            "(batch head) query key"; 1 is an axis of size 1.
        order: the permitted names; 'query' and 'key' are required.
        sizes: sizes of axes in brackets, all but one per bracket.
    """
    if not isinstance(axes, str):
        raise RegardError(f"axes={axes!r}, expected words in a string, as 'head batch query key'")
    groups = [name.strip("()").replace(",", " ").split() for name in re.findall(_NAMES, axes)]
    unnamed = weights.dim() - len(groups)
    single = [axis for axis, size in enumerate(weights.shape) if size == 1]
    if not 0 <= unnamed <= len(single):
        raise ShapeError(f"axes={axes!r} names {len(groups)} axes of {weights.dim()}")
    weights = weights.squeeze(single[:unnamed])
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
    for group, size in zip(groups, weights.shape):
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
    """Sizes of merged axes; one may be inferred."""
    open_axes = [name for name in group if name not in sizes]
    if len(open_axes) > 1:
        raise ShapeError(
            f"({' '.join(group)}) has size {size}: say the size of one, as {group[-1]}=4"
        )
    rest = math.prod(sizes[name] for name in group if name in sizes)
    if rest < 1 or size % rest or (not open_axes and rest != size):
        raise ShapeError(
            f"({' '.join(group)}) has size {size}, which is no multiple of "
            f"{', '.join(f'{name}={sizes[name]}' for name in group if name in sizes)}"
        )
    return [sizes.get(name, size // rest) for name in group]


def check_rows(
    weights: Tensor, kind: Kind, name: str, axes: str | None = None, otherwise: str = _KINDS
) -> None:
    """Raise if rows do not sum as the kind requires: the axes may be in another order.

    `otherwise` is the caller's advice for the error.
    """
    if kind not in ("distribution", "partial") or not weights.numel():
        return
    slack = 1e-2 if weights.dtype in (torch.float16, torch.bfloat16) else 1e-3
    weights = weights.detach()
    lowest = float(weights.min())
    if lowest < -slack:
        raise ShapeError(
            f"{name}: the smallest weight is {lowest:.3g}; a {kind} has none below 0: {otherwise}"
        )
    sums = _row_sums(weights)
    good = (sums - 1).abs() <= slack if kind == "distribution" else sums <= 1 + slack
    good |= sums.abs() <= slack  # a row that may attend to nothing
    if bool(good.all()):
        return
    worst = sums[~good][0].item()
    raise ShapeError(
        f"{name}: rows do not sum to {'1' if kind == 'distribution' else 'at most 1'} over the "
        f"last axis (one sums to {worst:.6g}). {_advice(weights, slack, axes, otherwise)}"
    )


def _row_sums(weights: Tensor) -> Tensor:
    """Sums over the keys in double precision, by head if there are many weights."""
    if weights.numel() <= _AT_ONCE:
        return weights.to(torch.float64).sum(-1)
    return torch.stack(
        [torch.stack([head.to(torch.float64).sum(-1) for head in example]) for example in weights]
    )


def _advice(weights: Tensor, slack: float, axes: str | None, otherwise: str) -> str:
    """Which axis sums to 1, and how to name it."""
    for axis in range(3):
        sums = weights.sum(axis, dtype=torch.float64)
        if bool(((sums - 1).abs() <= slack).all()):
            if axes is not None:
                return f"The axis that axes={axes!r} calls {AXES[axis]!r} does: are the keys there?"
            names = ["batch", "head", "query"]
            names.insert(axis, "key")
            return (
                f"Axis {axis} does: if the keys lie there, name the axes, as "
                f'axes="{" ".join(names)}", or with the other three in another order'
            )
    named = 'name the axes, as axes="head batch query key", or ' if axes is None else ""
    return f"Weights after dropout do not: take them before it. Or {named}{otherwise}"
