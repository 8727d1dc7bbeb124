"""Biases: numbers added to the scores, as a tensor or as a structured part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UnavailableError
from regard.types import Block, brief, register_pytree


class Bias(ABC):
    """Numbers added to the scores, evaluated block by block."""

    def __repr__(self) -> str:
        return brief(self)

    @abstractmethod
    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        """The bias of a block; broadcasts over batch and head."""

    @abstractmethod
    def at(self, batch: int, head: int) -> Bias:
        """The bias of one example and head."""

    def of_heads(self, which: Sequence[int]) -> Bias:
        """The bias of some heads."""
        if self.heads == 1:
            return self
        raise UnavailableError(f"some heads of a structured bias, {self!r}: not offered")

    @property
    @abstractmethod
    def heads(self) -> int:
        """Heads it has; 1 serves all."""

    @property
    @abstractmethod
    def requires_grad(self) -> bool:
        """Whether training reaches it."""


def bias_block(bias: Tensor | Bias | None, block: Block) -> Tensor | None:
    """The bias of a block, whether it is a tensor or a structured part."""
    if bias is None or isinstance(bias, Bias):
        return None if bias is None else bias.block(block)
    rows = slice(None) if bias.shape[2] == 1 else block.rows
    columns = slice(None) if bias.shape[3] == 1 else block.columns
    return bias[:, :, rows, columns]


def bias_at(bias: Tensor | Bias | None, batch: int, head: int) -> Tensor | Bias | None:
    """The bias of one example and head."""
    if bias is None or isinstance(bias, Bias):
        return None if bias is None else bias.at(batch, head)
    for axis, index in ((0, batch), (1, head)):
        if bias.shape[axis] != 1:
            bias = bias.narrow(axis, index, 1)
    return bias


def bias_of_heads(bias: Tensor | Bias | None, which: Sequence[int]) -> Tensor | Bias | None:
    """The bias of some heads."""
    if bias is None or isinstance(bias, Bias):
        return None if bias is None else bias.of_heads(which)
    return bias if bias.shape[1] == 1 else bias[:, list(which)]


@dataclass(frozen=True, eq=False, repr=False)
class _BiasOfBias(Bias):
    """A bias that is made from another one, head by head."""

    bias: Bias

    def at(self, batch: int, head: int) -> Bias:
        return replace(self, bias=self.bias.at(batch, head))

    def of_heads(self, which: Sequence[int]) -> Bias:
        return replace(self, bias=self.bias.of_heads(which))

    @property
    def heads(self) -> int:
        return self.bias.heads

    @property
    def requires_grad(self) -> bool:
        return self.bias.requires_grad


@dataclass(frozen=True, eq=False, repr=False)
class GappedBias(_BiasOfBias):
    """A bias of a text from which the keys `start` to `stop` were dropped."""

    start: int
    stop: int

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        gone = self.stop - self.start
        middle = min(max(self.start, block.left), block.right)
        spans = slice(block.left, middle), slice(middle + gone, block.right + gone)
        text = block._replace(keys=block.keys + gone)
        blocks = [self.bias.block(text.over(span)) for span in spans if span.start < span.stop]
        return torch.cat(blocks, dim=-1) if blocks else self.bias.block(text.over(spans[0]))


@dataclass(frozen=True, eq=False, repr=False)
class CachedBias(_BiasOfBias):
    """A bias of positions in a cache: from the `first` keys, queries stand at most at `edge`."""

    first: int
    edge: int

    def block(self, block: Block) -> Float[Tensor, "batch head query key"]:
        near = self.bias.block(block)
        at_edge = self.bias.block(Block(0, 1, block.left, block.right, 1, self.edge + 1))
        rows = torch.arange(block.top, block.bottom, device=near.device) + block.offset
        columns = torch.arange(block.left, block.right, device=near.device)
        return torch.where((rows[:, None] > self.edge) & (columns < self.first), at_edge, near)


register_pytree(CachedBias, static=("first", "edge"))
register_pytree(GappedBias, static=("start", "stop"))


def bias_without_keys(bias: Tensor | Bias | None, gap: slice) -> Tensor | Bias | None:
    """The bias of the keys that are left when those of `gap` are dropped."""
    alike = isinstance(bias, Tensor) and bias.shape[3] == 1
    if bias is None or alike or gap.start == gap.stop:
        return bias
    if isinstance(bias, Bias):
        return GappedBias(bias, gap.start, gap.stop)
    return torch.cat([bias[..., : gap.start], bias[..., gap.stop :]], dim=3)
