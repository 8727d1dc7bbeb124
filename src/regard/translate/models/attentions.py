"""How a decoder looks at the source: a mechanism, and what it needs to know of the steps."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.contract import Attended, Mechanism, State
from regard.masks import Mask
from regard.types import Kind


class SourceAttention(nn.Module):
    """A mechanism from decoder states to annotations, which are prepared once a sentence.

    The query axis holds either the steps of a target or the beams of a sentence at one step, so
    `steps` gives the step of each query. Subclasses may restrict what a step attends to.
    """

    def __init__(self, mechanism: Mechanism, width: int) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.width = width  #: features of the context

    @property
    def kind(self) -> Kind:
        return self.mechanism.kind

    def fix(
        self, annotations: Float[Tensor, "batch source width"], mask: Bool[Tensor, "batch source"]
    ) -> State:
        """The annotations, prepared once a sentence."""
        return self.mechanism.fix(annotations)

    def allowed(
        self, mask: Bool[Tensor, "batch source"], steps: Int[Tensor, "batch query"]
    ) -> Mask:
        """What each query may look at."""
        return masks.padding(mask)

    def forward(
        self,
        query: Float[Tensor, "batch query width"],
        fixed: State,
        mask: Bool[Tensor, "batch source"],
        steps: Int[Tensor, "batch query"],
        *,
        weights: bool = False,
    ) -> Attended:
        """Contexts (batch, query, width) and, where asked, weights (batch, 1, query, source)."""
        attended: Attended = self.mechanism(
            query, state=fixed, mask=self.allowed(mask, steps), weights=weights
        )
        return attended


class LocalSourceAttention(SourceAttention):
    """local-m (Luong et al. 2015, section 3.2): step t sees [t − D, t + D], and no further.

    As in the authors' released code, the centre stays at the last token once the target is longer
    than the source, so that a row is never empty.
    """

    def __init__(self, mechanism: Mechanism, width: int, reach: int = 10) -> None:
        super().__init__(mechanism, width)
        self.reach = reach

    def allowed(
        self, mask: Bool[Tensor, "batch source"], steps: Int[Tensor, "batch query"]
    ) -> Mask:
        centre = torch.minimum(steps, mask.sum(1, keepdim=True) - 1)  # (batch, query)
        positions = torch.arange(mask.shape[1], device=mask.device)
        near = (positions - centre[..., None]).abs() <= self.reach  # (batch, query, source)
        return masks.padding(mask) & masks.pairs(near[:, None])
