"""Decoders whose previous state looks at the source (Bahdanau et al. 2015)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.translate.models.attentions import Look
from regard.translate.models.cells import Deep
from regard.translate.models.decoders import (
    Advanced,
    Attending,
    Bridge,
    Mask,
    Readout,
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


class PreviousState(Attending):
    """Bahdanau et al. 2015: the *previous* state sᵢ₋₁ looks, and the context goes into the cell.

    αᵢ from sᵢ₋₁, cᵢ; sᵢ = cell([yᵢ₋₁; cᵢ], sᵢ₋₁); features tanh(W [sᵢ; yᵢ₋₁; cᵢ]). With more than
    one layer the first looks, and the others go on from it.

    Departures: the readout is one tanh layer, not maxout, and takes the new state sᵢ; the first
    state comes from the last states of both directions, not of the backward one alone.
    """

    def __init__(
        self, cells: Deep, bridge: Bridge, look: Look, readout: Readout, wiring: Wiring
    ) -> None:
        super().__init__(cells, bridge, look, readout)
        self.wiring = wiring

    def step(
        self,
        memory: dict[str, Any],
        mask: Mask,
        state: dict[str, Any],
        embedded: Tensor,
        *,
        weights: bool = False,
    ) -> Advanced:
        query = self.wiring.query(embedded, state["cells"][0][0])
        context, made = by_rows(self.look, query, memory, mask, state["steps"], weights)
        entry = self.wiring.entry(embedded, context)
        output, cells = self.cells.advance(entry, state["cells"])
        after = {"cells": cells, "steps": state["steps"] + 1}
        return Advanced(self.readout(*self.wiring.parts(output, embedded, context)), after, made)

    def over(
        self, memory: dict[str, Any], mask: Mask, embedded: Tensor, *, weights: bool = False
    ) -> Advanced:
        return stepwise(self, memory, mask, embedded, weights=weights)
