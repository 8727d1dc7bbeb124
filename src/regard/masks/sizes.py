"""Sizes and slices that the parts of a mask share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import MaskError
from regard.types import pieces

_STRIP = 1 << 22  # elements of a boolean strip evaluated at once


def row_strips(queries: int, keys: int) -> list[slice]:
    """Rows of a mask that are evaluated together."""
    if torch.compiler.is_compiling():
        return [slice(0, queries)]
    return list(pieces(queries, max(1, _STRIP // max(1, keys))))


def least(first: int | None, second: int | None) -> int | None:
    """The smaller of two sizes, either of which may be unknown."""
    sizes = [size for size in (first, second) if size is not None]
    return min(sizes) if sizes else None


def clip(start: Any, stop: Any, keys: int) -> slice:
    """A range of keys, cut to those there are."""
    start = min(max(start, 0), keys)
    return slice(start, max(min(stop, keys), start))


def pick(tensor: Tensor, axis: int, index: int) -> Tensor:
    """One entry of `axis`, kept as an axis of size one."""
    return tensor if tensor.shape[axis] == 1 else tensor.narrow(axis, index, 1)


def outside(tensor: Tensor, gap: slice) -> Tensor:
    """The last axis without the entries of `gap`."""
    return torch.cat([tensor[..., : gap.start], tensor[..., gap.stop :]], dim=-1)


def fits(part: str, got: Any, expected: dict[str, int], broadcast: tuple[str, ...]) -> None:
    """Refuse a mask whose axes have other sizes than the scores."""
    for size, (axis, want) in zip(got, expected.items()):
        if size != want and not (size == 1 and axis in broadcast):
            or_one = " or 1" if axis in broadcast and want != 1 else ""
            raise MaskError(
                f"masks.{part}: axis {axis} has size {size}, expected {want}{or_one} "
                f"(mask {tuple(got)})"
            )
