"""Decoders whose current state looks at the source (Luong et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.translate.models.decoders import (
    Advanced,
    Attending,
    Mask,
    by_rows,
    stepwise,
)


class CurrentState(Attending):
    """Luong et al. 2015: the state hₜ looks, and h̃ₜ = tanh(W_c [cₜ; hₜ]) are the features.

    Nothing of the attention goes back into the recurrence, so whole targets go through the cells at
    once, and then through the attention at once.
    """

    def step(
        self,
        memory: dict[str, Any],
        mask: Mask,
        state: dict[str, Any],
        embedded: Tensor,
        *,
        weights: bool = False,
    ) -> Advanced:
        output, cells = self.cells.advance(embedded, state["cells"])
        context, made = by_rows(self.look, output, memory, mask, state["steps"], weights)
        after = {"cells": cells, "steps": state["steps"] + 1}
        return Advanced(self.readout(context, output), after, made)

    def over(
        self, memory: dict[str, Any], mask: Mask, embedded: Tensor, *, weights: bool = False
    ) -> Advanced:
        output = self.cells.over(embedded, memory["start"])
        steps = torch.arange(output.shape[1], device=mask.device).expand(output.shape[:2])
        attended = self.look(output, memory["look"], mask, steps, weights=weights)
        return Advanced(self.readout(attended.output, output), None, attended.weights)


class InputFeeding(CurrentState):
    """Luong's decoder with input feeding: h̃ₜ₋₁ beside the next embedding (section 3.3).

    The cells are built for the embedding and the features. The recurrence now runs through the
    attention: step by step.
    """

    def start(self, memory: dict[str, Any], mask: Mask, beams: int) -> dict[str, Any]:
        state = super().start(memory, mask, beams)
        like = self.readout.linear.weight
        return {**state, "fed": like.new_zeros(mask.shape[0] * beams, self.readout.width)}

    def step(
        self,
        memory: dict[str, Any],
        mask: Mask,
        state: dict[str, Any],
        embedded: Tensor,
        *,
        weights: bool = False,
    ) -> Advanced:
        fed = torch.cat([embedded, state["fed"].to(embedded.dtype)], -1)
        advanced = super().step(memory, mask, state, fed, weights=weights)
        return advanced._replace(state={**advanced.state, "fed": advanced.features})

    def over(
        self, memory: dict[str, Any], mask: Mask, embedded: Tensor, *, weights: bool = False
    ) -> Advanced:
        return stepwise(self, memory, mask, embedded, weights=weights)
