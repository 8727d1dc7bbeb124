"""Decoders whose current state looks at the source (Luong et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.translate.models.contract import EncoderOutput
from regard.translate.models.decoders import (
    AttentionDecoder,
    DecoderStep,
    State,
    by_rows,
    stepwise,
)


class CurrentState(AttentionDecoder):
    """Luong et al. 2015: the state hₜ looks, and h̃ₜ = tanh(W_c [cₜ; hₜ]) are the features.

    Nothing of the attention goes back into the recurrence, so whole targets go through the cells at
    once, and then through the attention at once.
    """

    def step(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        output, cells = self.cells.advance(embedded, state["cells"])
        context, step_weights = by_rows(self.look, output, encoded, state["steps"], weights)
        after = {"cells": cells, "steps": state["steps"] + 1}
        return DecoderStep(self.readout(context, output), after, step_weights)

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        output = self.cells.over(embedded, encoded.memory["start"])
        steps = torch.arange(output.shape[1], device=encoded.mask.device).expand(output.shape[:2])
        attended = self.look(output, encoded.memory["look"], encoded.mask, steps, weights=weights)
        return DecoderStep(self.readout(attended.output, output), None, attended.weights)


class InputFeeding(CurrentState):
    """Luong's decoder with input feeding: h̃ₜ₋₁ beside the next embedding (section 3.3).

    The cells are built for the embedding and the features. The recurrence now runs through the
    attention: step by step.
    """

    def start(self, encoded: EncoderOutput, beams: int) -> State:
        state = super().start(encoded, beams)
        like = self.readout.linear.weight
        return {**state, "fed": like.new_zeros(encoded.mask.shape[0] * beams, self.readout.width)}

    def step(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        fed = torch.cat([embedded, state["fed"].to(embedded.dtype)], -1)
        advanced = super().step(encoded, state, fed, weights=weights)
        return advanced._replace(state={**advanced.state, "fed": advanced.features})

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        return stepwise(self, encoded, embedded, weights=weights)
