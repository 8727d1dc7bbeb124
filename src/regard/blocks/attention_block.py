"""The signature of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from regard.contract import BlockOutput
from regard.kernel.reducers.base import Reducer
from regard.masks import Mask
from regard.types import Features


class AttentionBlock(nn.Module, ABC):
    """A module on features (batch, position, width) with attentions inside, known by name."""

    causal: bool = False  #: what `causal=None` means
    needs_context: bool = False  #: attends to another sequence too
    attends_itself: bool = True  #: has an attention `self` among positions of x

    @abstractmethod
    def forward(
        self,
        x: Features,
        context: Float[Tensor, "batch context_position context_width"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
        causal: bool | None = None,
        state: Any = None,
        weights: bool = False,
        reduce: Sequence[Reducer] = (),
    ) -> BlockOutput:
        """Features of the same shape, the attentions by name, and the state for the next call.

        Args:
            x: (batch, position, width).
            context: (batch, context position, width), such as an encoder's output; not passed
                again where a state holds it.
            mask: which positions of `x` may attend to which; a `Mask`, or a boolean tensor of four
                axes. True means "may attend". With a state it spans all positions, old and new;
                the state remembers padding.
            context_mask: which positions of the context may be attended to; a state remembers
                padding.
            causal: whether positions attend only to earlier ones; by default the block's own
                `causal`, and True with a state, since later positions arrive in later calls.
            state: the `.state` of the last call, or True to start one.
            weights: also return the weights of every attention.
            reduce: reducers, answered by every attention in its `reductions`.
        """
