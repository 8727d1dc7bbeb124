"""Positions of an image in groups that attend among themselves: windows, rows, columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.bias import Bias
from regard.errors import ShapeError
from regard.kernel.attend import run
from regard.masks.parts import Pairs
from regard.recipe import Dot, Edges, Recipe
from regard.vision.contract import ImageMechanism

Projected = Float[Tensor, "batch position head width"]


@runtime_checkable
class Position(Protocol):
    """A position part, as `regard.mechanisms.Rotary()`: it turns features, or gives a bias."""

    def turn(self, features: Tensor, start: int) -> Tensor:
        """Features (batch, head, slot, width) with the slot worked in."""
        ...

    def bias(self) -> Bias | None:
        """What is added to the scores."""
        ...


class Groups(NamedTuple):
    """Where the positions of an image are: each in one slot of one group."""

    position: Int[Tensor, "group slot"]  #: the position at each slot; any at a slot outside
    slot: Int[Tensor, " position"]  #: group · slots + slot of each position
    allowed: Bool[Tensor, "group slot slot"] | None  #: who may attend to whom; all when None
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
    own: slots of different regions, and slots outside the image, may not attend to each other.
    """
    rows, columns = (_Axis.of(length, size, shift, device) for length in (height, width))
    position = rows.position[:, None, :, None] * width + columns.position[None, :, None]
    slot = (rows.window[:, None] * columns.position.shape[0] + columns.window) * size**2
    slot = slot + rows.slot[:, None] * size + columns.slot
    allowed = None
    # A graph serves images of any size, so it has the mask in any case.
    if torch.compiler.is_compiling() or shift or height % size or width % size:
        same = rows.same[:, None, :, None, :, None] & columns.same[None, :, None, :, None]
        allowed = same.flatten(0, 1).flatten(3, 4).flatten(1, 2)  # (window, slot, slot)
    return Groups(position.flatten(0, 1).flatten(1), slot.flatten(), allowed, (height, width))


class _Axis(NamedTuple):
    """One axis of an image, cut into windows."""

    position: Int[Tensor, "window slot"]  # inside the image; any where outside
    same: Bool[Tensor, "window slot slot"]  # of one region, and the key inside the image
    window: Int[Tensor, " position"]
    slot: Int[Tensor, " position"]

    @classmethod
    def of(cls, length: int, size: int, shift: int, device: torch.device) -> _Axis:
        count = -(-length // size)
        shift = torch.sym_min(shift, (count - 1) * shift)  # 0 where one window has it all
        slots = torch.arange(count * size, device=device).view(count, size) + shift
        wrapped, position = slots >= count * size, slots % (count * size)
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
    """Softmax attention inside each group; the recipe has the weights at their true positions."""
    batch, n_groups = query.shape[0], groups.position.shape[0]

    def grouped(features: Tensor) -> Tensor:
        """(batch · group, head, slot, width)."""
        members = features[:, groups.position]  # (batch, group, slot, head, width)
        return members.flatten(0, 1).transpose(1, 2)

    queries, keys, values = grouped(query), grouped(key), grouped(value)
    if position is not None:
        queries, keys, bias = position.turn(queries, 0), position.turn(keys, 0), position.bias()
    mask = None
    if groups.allowed is not None:
        mask = Pairs(groups.allowed.repeat(batch, 1, 1)[:, None])
    dot = Dot(queries, keys, values, mask=mask, bias=bias, scale=scale)
    mixed = run(dot).output.transpose(1, 2)  # (batch · group, slot, head, width)
    output = mixed.unflatten(0, (batch, n_groups)).flatten(1, 2)[:, groups.slot]

    def recipe() -> Recipe:
        return _edges(dot, groups, value.transpose(1, 2))

    return output, recipe


def _edges(dot: Dot, groups: Groups, value: Tensor) -> Edges:
    """The weights of groups as edges between the positions of the image."""
    n_groups, n_slots = groups.position.shape
    weights = dot.weights()  # (batch · group, head, slot, slot)
    weights = weights.unflatten(0, (value.shape[0], n_groups)).transpose(1, 2).flatten(2, 3)
    weights = weights[:, :, groups.slot]  # (batch, head, position, slot)
    positions = groups.slot.shape[0]
    key = groups.position[groups.slot // n_slots]  # (position, slot)
    own = torch.arange(positions, device=key.device)[:, None]
    if groups.allowed is not None:  # an absent edge lies on its query
        key = torch.where(groups.allowed.flatten(0, 1)[groups.slot], key, own)
    return Edges(
        own.expand_as(key).reshape(1, 1, -1),
        key.reshape(1, 1, -1),
        weights.flatten(2),
        positions,
        positions,
        value,
        grid=groups.grid,
    )


class GroupAttention(ImageMechanism):
    """Linear maps around attention inside groups; a subclass says which groups, and its bias."""

    def __init__(
        self,
        channels: int,
        n_heads: int,
        *,
        initialise: Callable[[Tensor], object],
        position: Position | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or channels % n_heads:
            raise ShapeError(
                f"{type(self).__name__}: n_heads={n_heads}, expected a divisor of {channels} "
                "channels"
            )
        self.channels, self.n_heads, self.position = channels, n_heads, position
        self.to_query, self.to_key, self.to_value, self.to_output = (
            nn.Linear(channels, channels) for _ in range(4)
        )
        for linear in (self.to_query, self.to_key, self.to_value, self.to_output):
            initialise(linear.weight)
            nn.init.zeros_(linear.bias)

    @abstractmethod
    def groups(self, height: int, width: int, device: torch.device) -> Groups:
        """The groups of an image."""

    def bias(self) -> Bias | None:
        """What is added to the scores inside each group."""
        return None

    def attend(
        self, image: Float[Tensor, "batch channel height width"]
    ) -> tuple[Float[Tensor, "batch channels rows columns"], Callable[[], Recipe]]:
        height, width = image.shape[2:]
        features = image.flatten(2).mT  # (batch, position, channel)
        query, key, value = (
            project(features).unflatten(2, (self.n_heads, -1))
            for project in (self.to_query, self.to_key, self.to_value)
        )
        groups = self.groups(height, width, image.device)
        scale, bias = query.shape[3] ** -0.5, self.bias()
        mixed, recipe = attend_in_groups(
            query, key, value, groups, scale=scale, bias=bias, position=self.position
        )
        output = self.to_output(mixed.flatten(2))
        return output.mT.unflatten(2, (height, width)), recipe
