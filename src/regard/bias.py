"""Biases: numbers added to the scores, as a tensor or as a structured part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from regard.errors import UnavailableError
from regard.types import Block, brief


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
