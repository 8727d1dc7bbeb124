"""The training examples of an epoch, in blocks: one of all that is in memory, or several in turn.

A block is planned, shuffled and, with guidance, aligned by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from regard.translate.data import Examples, Pair
from regard.translate.training.guidance import Guidance
from regard.translate.training.streaming import StreamedPairs


@dataclass(frozen=True, eq=False)
class Block:
    """Examples, and what a head is taught with them."""

    examples: Examples
    guidance: Guidance | None = None


class Blocks(ABC):
    """The blocks of all epochs; an epoch has `count`."""

    count: int

    @abstractmethod
    def at(self, epoch: int, number: int) -> Block:
        """A block of an epoch; quick if it follows the last one."""


class WholeBlock(Blocks):
    """All examples, in every epoch the same."""

    count = 1

    def __init__(self, block: Block) -> None:
        self.block = block

    def at(self, epoch: int, number: int) -> Block:
        return self.block


class StreamedBlocks(Blocks):
    """Blocks that are read when they are wanted.

    Args:
        pairs: where they are read.
        seed: of the order of files.
        new_block: makes a block of pairs.
    """

    def __init__(
        self, pairs: StreamedPairs, seed: int, new_block: Callable[[list[Pair]], Block]
    ) -> None:
        self.pairs = pairs
        self.seed = seed
        self.new_block = new_block
        self.count = pairs.n_blocks
        self._next = (-1, 0)
        self._reading: Iterator[list[Pair]] = iter(())

    def at(self, epoch: int, number: int) -> Block:
        if self._next != (epoch, number):
            self._reading = self.pairs.blocks(self.seed, epoch, number)
        self._next = (epoch, number + 1)
        return self.new_block(next(self._reading))
