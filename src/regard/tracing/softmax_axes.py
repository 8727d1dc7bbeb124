"""Which axes the softmaxes of a model have, by the line that runs them: what capture learned.

A softmax does not tell which of its axes is batch, head, query or key, and its product with the
values comes too late for one who wants to change it. So each capture of a model leaves what it
found, and `regard.editing` reads it.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from regard.errors import ShapeError
from regard.interception import LOCK
from regard.record.stored_attention import Layout
from regard.tracing.dataflow.axis_roles import Roles
from regard.tracing.dataflow.tags import Candidate
from regard.tracing.module_paths import CallSite

#: Softmax operators whose axes are learned.
SOFTMAXES = ("_softmax", "_safe_softmax", "softmax")
_BATCH, _HEAD, _QUERY, _KEY = range(4)

Line = tuple[str, str]  #: module path, source line


class Part(NamedTuple):
    """A dim of the softmax, or a factor of one in which several axes are merged."""

    role: int  # 0 batch, 1 head, 2 query, 3 key
    size: int  # 0: whatever the other factors leave


class SoftmaxAxes(NamedTuple):
    """(batch, head, query, key) by dims of a softmax."""

    dims: tuple[tuple[Part, ...], ...]  # outermost factor first
    dim: int  # of the softmax
    before: int = 0  # columns before the keys, such as a sink
    after: int = 0  # columns after them
    gathered: bool = False  # every query has keys of its own, chosen from all

    def arrange(self, scores: Tensor) -> Tensor:
        """The tensor as (batch, head, query, column); columns are keys and sinks."""
        sizes, order, shape = self._split(tuple(scores.shape))
        return scores.reshape(sizes).permute(order).reshape(shape)

    def restore(self, weights: Tensor, like: Tensor) -> Tensor:
        """Bring (batch, head, query, column) into the shape and strides of a softmax's result."""
        sizes, order, _ = self._split(tuple(like.shape))
        apart = weights.reshape([sizes[index] for index in order])
        back = [order.index(index) for index in range(len(order))]
        restored = apart.permute(back).reshape(like.shape)
        return restored if restored.stride() == like.stride() else restored.contiguous()

    def _split(self, shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
        """Sizes of the factors, their order by role, and the shape by role."""
        if len(shape) != len(self.dims):
            raise ShapeError(
                f"a softmax of {len(shape)} axes, {shape}, expected {len(self.dims)} as captured"
            )
        sizes: list[int] = []
        roles: list[int] = []
        for size, parts in zip(shape, self.dims):
            fixed = math.prod(part.size for part in parts if part.size)
            if size % fixed or (size != fixed and all(part.size for part in parts)):
                raise ShapeError(
                    f"a softmax of {shape} has an axis of size {size}, expected a multiple of "
                    f"{fixed} as captured"
                )
            sizes += [part.size or size // fixed for part in parts]
            roles += [part.role for part in parts]
        order = sorted(range(len(roles)), key=roles.__getitem__)
        by_role = [math.prod(s for s, role in zip(sizes, roles) if role == r) for r in range(4)]
        return sizes, order, by_role


class NoAxes(StrEnum):
    """Why weights that capture found have no axes of one softmax."""

    SPELLED = "they are spelled with exp and sum"
    MIXED = "heads or softmaxes are mixed in them, or they were changed after the softmax"
    UNCLEAR = "the axes of their softmax cannot be told"


def axes_of(candidate: Candidate, roles: Roles, layout: Layout) -> SoftmaxAxes | None:
    """The axes of a softmax that was found to be attention; None if they cannot be told.

    `layout` is that of the weights that meet values: all columns, or those beside a sink.
    """
    dim = candidate.key
    if not roles.certain or not candidate.dims:
        return None
    role_of = {axis.origin: role for role, axes in enumerate(roles.axes[:_KEY]) for axis in axes}
    dims: list[tuple[Part, ...]] = []
    for index, (size, pieces) in enumerate(zip(candidate.shape, candidate.dims)):
        if index == dim:
            dims.append((Part(_KEY, 0),))
            continue
        parts = [(role_of.get(origin, -1), count) for count, origin in pieces if count != 1]
        if any(role < 0 for role, _ in parts):
            return None
        dims.append(_merged(parts) if size != 1 else ())
    columns = candidate.shape[dim]
    span = _span(roles, candidate, layout, columns)
    single = [index for index, parts in enumerate(dims) if not parts]
    missing = [r for r in range(_KEY) if not any(p.role == r for parts in dims for p in parts)]
    for index, role in zip(single, missing if len(single) <= len(missing) else []):
        dims[index] = (Part(role, 0),)
    dims = [parts or (Part(_BATCH, 1),) for parts in dims]
    if span is None:
        return None
    return SoftmaxAxes(tuple(dims), dim, span.start, columns - span.stop, roles.gathered)


def _merged(parts: list[tuple[int, int]]) -> tuple[Part, ...]:
    """Factors of a dim: neighbours of one role are one, and one factor takes what is left."""
    joined: list[Part] = []
    for role, size in parts:
        if joined and joined[-1].role == role:
            joined[-1] = Part(role, joined[-1].size * size)
        else:
            joined.append(Part(role, size))
    free = min(range(len(joined)), key=lambda index: (joined[index].role == _HEAD, index))
    joined[free] = Part(joined[free].role, 0)
    return tuple(joined)


def _span(roles: Roles, candidate: Candidate, layout: Layout, columns: int) -> range | None:
    """The columns that are keys: all of them, or a slice beside a sink."""
    keys = math.prod(axis.size for axis in roles.key)
    if columns > 1 and not all(candidate.has_key(axis.origin) for axis in roles.key):
        return None
    if any(candidate.has_key(axis.origin) for axes in roles.axes[:_KEY] for axis in axes):
        return None  # one softmax over queries and keys
    if keys == columns:
        return range(columns)
    strides = [stride for _, stride in layout.axes[_KEY]]
    start, inside = divmod(layout.offset, strides[0]) if strides else (0, 0)
    return range(start, start + keys) if not inside and start + keys <= columns else None


# -- what captures found, by model

Table = dict[Line, SoftmaxAxes | NoAxes]
_tables: WeakKeyDictionary[nn.Module, Table] = WeakKeyDictionary()


def softmax_axes(model: nn.Module) -> Table:
    """The softmaxes of a model that attend, by line."""
    with LOCK:
        return _tables.setdefault(model, {})


def learn(
    model: nn.Module | None,
    call_site: CallSite,
    candidate: Candidate,
    roles: Roles,
    layout: Layout,
    own: bool,
) -> None:
    """Note the axes of a softmax that was found to be attention; `own` tells whether the weights
    that meet values are its own result."""
    if model is None:
        return
    table, line = softmax_axes(model), (call_site.path, call_site.source)
    if isinstance(table.get(line), SoftmaxAxes):
        return  # what is known stays: a changed pass may not show it
    if candidate.operator not in SOFTMAXES:
        table[line] = NoAxes.SPELLED
    elif not own:
        table[line] = NoAxes.MIXED
    else:
        table[line] = axes_of(candidate, roles, layout) or NoAxes.UNCLEAR
