"""Decoders whose previous state looks at the source (Bahdanau et al. 2015)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.translate.models.attentions import SourceAttention
from regard.translate.models.cells import CellStack
from regard.translate.models.contract import EncoderOutput
from regard.translate.models.decoders import (
    AttentionDecoder,
    Bridge,
    DecoderStep,
    Readout,
    State,
    by_rows,
    stepwise,
)


class Wiring(nn.Module):
    """What goes where in a `PreviousState` decoder. As it stands, Bahdanau's."""

    def query(self, embedded: Tensor, before: Tensor) -> Tensor:
        """What looks."""
        return before

    def entry(self, embedded: Tensor, context: Tensor) -> Tensor:
        """What the cell is given."""
        return torch.cat([embedded, context], -1)

    def parts(self, output: Tensor, embedded: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """What the readout is given."""
        return output, embedded, context


class TutorialWiring(Wiring):
    """The old PyTorch tutorial's: the query is [embedded; state], the cell is given
    relu(W [embedded; context]), and the readout the cell's output alone."""

    def __init__(self, embedding: int, context: int) -> None:
        super().__init__()
        self.combine = nn.Linear(embedding + context, embedding)

    def query(self, embedded: Tensor, before: Tensor) -> Tensor:
        return torch.cat([embedded, before.to(embedded.dtype)], -1)

    def entry(self, embedded: Tensor, context: Tensor) -> Tensor:
        joined: Tensor = self.combine(torch.cat([embedded, context], -1)).relu()
        return joined

    def parts(self, output: Tensor, embedded: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        return (output,)


class PreviousState(AttentionDecoder):
    """Bahdanau et al. 2015: the *previous* state sᵢ₋₁ looks, and the context goes into the cell.

    αᵢ from sᵢ₋₁, cᵢ; sᵢ = cell([yᵢ₋₁; cᵢ], sᵢ₋₁); features tanh(W [sᵢ; yᵢ₋₁; cᵢ]). With more than
    one layer the first looks, and the others go on from it.

    Departures: the readout is one tanh layer, not maxout, and takes the new state sᵢ; the first
    state comes from the last states of both directions, not of the backward one alone.
    """

    def __init__(
        self,
        cells: CellStack,
        bridge: Bridge,
        look: SourceAttention,
        readout: Readout,
        wiring: Wiring,
    ) -> None:
        super().__init__(cells, bridge, look, readout)
        self.wiring = wiring

    def step(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        query = self.wiring.query(embedded, state["cells"][0][0])
        context, step_weights = by_rows(self.look, query, encoded, state["steps"], weights)
        entry = self.wiring.entry(embedded, context)
        output, cells = self.cells.advance(entry, state["cells"])
        after = {"cells": cells, "steps": state["steps"] + 1}
        return DecoderStep(
            self.readout(*self.wiring.parts(output, embedded, context)), after, step_weights
        )

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        return stepwise(self, encoded, embedded, weights=weights)
