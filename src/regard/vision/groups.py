"""Positions of an image in groups that attend among themselves: windows, rows, columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.bias import Bias
from regard.kernel.attend import run
from regard.masks.parts import Pairs
from regard.recipe import Dot, Edges, Recipe

Projected = Float[Tensor, "batch position head width"]


@runtime_checkable
class Position(Protocol):
    """A position part, as `regard.mechanisms.Rotary()`: it turns features, or gives a bias."""

    def turn(self, features: Tensor, start: int) -> Tensor:
        """Features (batch, head, place, width) with the place worked in."""
        ...

    def bias(self) -> Bias | None:
        """What is added to the scores."""
        ...


class Groups(NamedTuple):
    """Where the positions of an image are: each in one place of one group."""

    position: Int[Tensor, "group place"]  #: the position at each place; any at a place outside
    place: Int[Tensor, " position"]  #: group · places + place of each position
    allowed: Bool[Tensor, "group place place"] | None  #: who may attend to whom; all when None
    grid: tuple[int, int]  #: rows and columns of the image


def lines(height: int, width: int, axis: str, device: torch.device) -> Groups:
    """Each row a group, or each column."""
    positions = torch.arange(height * width, device=device)
    if axis == "row":
        return Groups(positions.view(height, width), positions, None, (height, width))
    return Groups(
        positions.view(height, width).mT.contiguous(),  # else the compiler misjudges strides
        positions.view(width, height).mT.flatten(),
        None,
        (height, width),
    )


def windows(height: int, width: int, size: int, shift: int, device: torch.device) -> Groups:
    """Windows of size × size from the top left, moved down and right by `shift`.

    What the last windows lack comes in from the other end of the image, where it is a region of its
    own: places of different regions, and places outside the image, may not attend to each other.
    """
    rows, columns = (_Axis.of(length, size, shift, device) for length in (height, width))
    position = rows.position[:, None, :, None] * width + columns.position[None, :, None]
    place = (rows.window[:, None] * columns.position.shape[0] + columns.window) * size**2
    place = place + rows.place[:, None] * size + columns.place
    allowed = None
    # A graph serves images of any size, so it has the mask in any case.
    if torch.compiler.is_compiling() or shift or height % size or width % size:
        same = rows.same[:, None, :, None, :, None] & columns.same[None, :, None, :, None]
        allowed = same.flatten(0, 1).flatten(3, 4).flatten(1, 2)  # (window, place, place)
    return Groups(position.flatten(0, 1).flatten(1), place.flatten(), allowed, (height, width))


class _Axis(NamedTuple):
    """One axis of an image, cut into windows."""

    position: Int[Tensor, "window place"]  # inside the image; any where outside
    same: Bool[Tensor, "window place place"]  # of one region, and the key inside the image
    window: Int[Tensor, " position"]
    place: Int[Tensor, " position"]

    @classmethod
    def of(cls, length: int, size: int, shift: int, device: torch.device) -> _Axis:
        count = -(-length // size)
        shift = torch.sym_min(shift, (count - 1) * shift)  # 0 where one window has it all
        places = torch.arange(count * size, device=device).view(count, size) + shift
        wrapped, position = places >= count * size, places % (count * size)
        inside = position < length
        same = (wrapped[:, :, None] == wrapped[:, None]) & inside[:, None]
        moved = (torch.arange(length, device=device) - shift) % (count * size)
        return cls(position.clamp_max(length - 1), same, moved // size, moved % size)


def attend_in_groups(
    query: Projected,
    key: Projected,
    value: Projected,
    groups: Groups,
    *,
    scale: float,
    bias: Tensor | Bias | None = None,
    position: Position | None = None,
) -> tuple[Float[Tensor, "batch position head value_width"], Callable[[], Recipe]]:
    """Softmax attention inside each group; the recipe has the weights at their true places."""
    batch, n_groups = query.shape[0], groups.position.shape[0]

    def grouped(features: Tensor) -> Tensor:
        """(batch · group, head, place, width)."""
        parts = features[:, groups.position]  # (batch, group, place, head, width)
        return parts.flatten(0, 1).transpose(1, 2)

    queries, keys, values = grouped(query), grouped(key), grouped(value)
    if position is not None:
        queries, keys, bias = position.turn(queries, 0), position.turn(keys, 0), position.bias()
    mask = None
    if groups.allowed is not None:
        mask = Pairs(groups.allowed.repeat(batch, 1, 1)[:, None])
    dot = Dot(queries, keys, values, mask=mask, bias=bias, scale=scale)
    mixed = run(dot).output.transpose(1, 2)  # (batch · group, place, head, width)
    output = mixed.unflatten(0, (batch, n_groups)).flatten(1, 2)[:, groups.place]

    def recipe() -> Recipe:
        return _edges(dot, groups, value.transpose(1, 2))

    return output, recipe


def _edges(dot: Dot, groups: Groups, value: Tensor) -> Edges:
    """The weights of groups as edges between the positions of the image."""
    n_groups, places = groups.position.shape
    weights = dot.weights()  # (batch · group, head, place, place)
    weights = weights.unflatten(0, (value.shape[0], n_groups)).transpose(1, 2).flatten(2, 3)
    weights = weights[:, :, groups.place]  # (batch, head, position, place)
    positions = groups.place.shape[0]
    key = groups.position[groups.place // places]  # (position, place)
    own = torch.arange(positions, device=key.device)[:, None]
    if groups.allowed is not None:  # an absent edge lies on its query
        key = torch.where(groups.allowed.flatten(0, 1)[groups.place], key, own)
    return Edges(
        own.expand_as(key).reshape(1, 1, -1),
        key.reshape(1, 1, -1),
        weights.flatten(2),
        positions,
        positions,
        value,
        grid=groups.grid,
    )
