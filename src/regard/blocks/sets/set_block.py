"""What every module on sets promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from regard.contract import BlockOutput
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.types import Features


class SetBlock(nn.Module, ABC):
    """A module on features (batch, position, width) whose order carries no meaning.

    Permuting the positions permutes the output alike, or leaves it as it is where `n_outputs` is a
    number: what order there is must be among the features, as `FourierFeatures` puts it there.
    """

    n_outputs: int | None = None  #: positions of the output; as many as came in when None

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
            mask: which positions may be looked at, such as `masks.padding(keep)`; or a boolean
                tensor of four axes. True means "may attend". Padding may hold NaN.
            weights: also return the weights of every attention.
            reduce: reducers, answered by every attention in its `reductions`.
        """
