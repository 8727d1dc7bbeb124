"""What the layers that reuse an attention have in common: their arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from regard.masks import Mask
from regard.reuse.source import Source, source_of
from regard.types import Features


class ReuseLayer(nn.Module, ABC):
    """A layer on features and the weights of an attention."""

    @abstractmethod
    def reuse(self, features: Features, source: Source) -> Tensor:
        """The output for features (batch, position, width)."""

    def forward(
        self,
        features: Features,
        weights: Any,
        *,
        mask: Mask | Tensor | None = None,
        causal: bool = False,
        axes: str | None = None,
    ) -> Tensor:
        """See the class; of `WeightedAggregation`, the positions of the features are the keys.

        Args:
            features: (batch, position, width) of the layer's side of the attention.
            weights, mask, causal, axes: as for `regard.reuse.source_of`.
        """
        return self.reuse(features, source_of(weights, mask=mask, causal=causal, axes=axes))
