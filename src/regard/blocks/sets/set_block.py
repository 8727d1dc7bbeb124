"""The signature of a module on sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from regard.blocks.cross_block import CrossBlock
from regard.blocks.sets.learned_queries import LearnedQueries
from regard.contract import BlockOutput
from regard.errors import RegardError, ShapeError
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.types import Features


class SetBlock(nn.Module, ABC):
    """A module on features (batch, position, width) whose order has no meaning.

    It is permutation equivariant, or invariant where `n_outputs` is a number. Order, if any, must
    be encoded in the features, as by `FourierFeatures`.
    """

    n_outputs: int | None = None  #: positions of the output; those of the input when None

    @abstractmethod
    def forward(
        self,
        x: Features,
        *,
        mask: Mask | Tensor | None = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Features (batch, position or output, width), and the attentions by name.

        Args:
            x: (batch, position, width).
            mask: which positions may be attended to, such as `masks.padding(keep)`; or a boolean
                tensor of four axes. True means "may attend". Padding may hold NaN.
            weights: also return the weights of every attention.
            reduce: reducers, answered by every attention in its `reductions`.
        """


def check_parts(module: nn.Module, queries: LearnedQueries, **blocks: CrossBlock) -> None:
    """Raise unless these are learned queries and cross blocks of their width."""
    owner = type(module).__name__
    if not isinstance(queries, LearnedQueries):
        raise RegardError(
            f"{owner}: {type(queries).__name__} as learned queries, expected "
            "LearnedQueries(n_queries, width)"
        )
    for name, block in blocks.items():
        if not isinstance(block, CrossBlock):
            raise RegardError(f"{owner}: {name} is {type(block).__name__}, expected a CrossBlock")
        if block.width != queries.width:
            raise ShapeError(
                f"{owner}: {name} has width {block.width}, expected {queries.width} as the "
                "learned queries"
            )
