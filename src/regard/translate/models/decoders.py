"""What recurrent decoders have in common, and the one without attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.translate.models.attentions import Look
from regard.translate.models.cells import CellState, Deep
from regard.translate.models.dropout import dropped
from regard.types import Kind

SITE = "cross"  #: the name of the one attention from target to source

Mask = Bool[Tensor, "batch source"]


class Advanced(NamedTuple):
    """One step, or all of them: features, the state after them, weights where asked."""

    features: Tensor
    state: Any
    weights: Tensor | None


class Bridge(nn.Module):
    """The decoder's first state, of each layer, from the encoder's summary of the same layer.

    h₀ = tanh(W summary); an LSTM's memory starts from a product of its own.
    """

    def __init__(self, summaries: list[int], cells: Deep) -> None:
        super().__init__()
        self.n_states = [cell.n_states for cell in cells.layers]
        self.layers = nn.ModuleList(
            nn.Linear(width, cell.hidden * cell.n_states)
            for width, cell in zip(summaries, cells.layers)
        )

    def forward(self, summaries: list[Tensor]) -> tuple[CellState, ...]:
        """A state for each layer, (batch, hidden) each."""
        states = []
        for layer, summary, n_states in zip(self.layers, summaries, self.n_states):
            first, *others = layer(summary).to(layer.weight.dtype).chunk(n_states, -1)
            states.append((first.tanh(), *others))
        return tuple(states)


class Readout(nn.Module):
    """tanh(W [parts]), the features that the output layer takes, with dropout."""

    def __init__(self, inputs: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.dropout = dropout
        self.width = width

    def forward(self, *parts: Tensor) -> Tensor:
        return dropped(self.linear(torch.cat(parts, -1)).tanh(), self.dropout, self.training)


class Decoder(nn.Module, ABC):
    """From a source, read, and embedded target tokens to features, step by step or all at once.

    `memory` is what it keeps of the source, once a sentence; a `state` has one entry a row, and
    sentence i with `beams` rows has the rows i · beams and on.
    """

    cells: Deep
    bridge: Bridge
    look: Look | None

    @property
    def kind(self) -> Kind:
        return "distribution" if self.look is None else self.look.kind

    def fix(self, annotations: Tensor, summaries: list[Tensor], mask: Mask) -> dict[str, Any]:
        """What is kept of a source: the first states, and what the attention looks at."""
        memory: dict[str, Any] = {"start": self.bridge(summaries)}
        if self.look is not None:
            memory["look"] = self.look.fix(annotations, mask)
        return memory

    def start(self, memory: dict[str, Any], mask: Mask, beams: int) -> dict[str, Any]:
        """The state before the first step."""
        cells = tuple(
            tuple(part.repeat_interleave(beams, 0) for part in layer) for layer in memory["start"]
        )
        return {"cells": cells}

    @abstractmethod
    def step(
        self,
        memory: dict[str, Any],
        mask: Mask,
        state: dict[str, Any],
        embedded: Float[Tensor, "row width"],
        *,
        weights: bool = False,
    ) -> Advanced:
        """One step: features (row, width), the state after it, weights (row, head, source)."""

    @abstractmethod
    def over(
        self,
        memory: dict[str, Any],
        mask: Mask,
        embedded: Float[Tensor, "batch target width"],
        *,
        weights: bool = False,
    ) -> Advanced:
        """All steps: features (batch, target, width), weights (batch, head, target, source)."""


class Unattended(Decoder):
    """A decoder that knows of the source what its first state says (Sutskever et al. 2014)."""

    def __init__(self, cells: Deep, bridge: Bridge, readout: Readout) -> None:
        super().__init__()
        self.cells = cells
        self.bridge = bridge
        self.look = None
        self.readout = readout

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
        return Advanced(self.readout(output), {"cells": cells}, None)

    def over(
        self, memory: dict[str, Any], mask: Mask, embedded: Tensor, *, weights: bool = False
    ) -> Advanced:
        return Advanced(self.readout(self.cells.over(embedded, memory["start"])), None, None)


class Attending(Decoder):
    """A decoder that looks at the source at every step, and counts its steps.

    Args:
        cells: the recurrence.
        bridge: from the encoder's last states to the first ones here.
        look: the attention.
        readout: from what a step has to its features.
    """

    look: Look

    def __init__(self, cells: Deep, bridge: Bridge, look: Look, readout: Readout) -> None:
        super().__init__()
        self.cells = cells
        self.bridge = bridge
        self.look = look
        self.readout = readout

    def start(self, memory: dict[str, Any], mask: Mask, beams: int) -> dict[str, Any]:
        state = super().start(memory, mask, beams)
        steps = torch.zeros(mask.shape[0] * beams, dtype=torch.long, device=mask.device)
        return {**state, "steps": steps}


def by_rows(
    look: Look,
    query: Float[Tensor, "row width"],
    memory: dict[str, Any],
    mask: Mask,
    steps: Int[Tensor, " row"],
    weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Look from rows: beams on the query axis, so that nothing of the source is repeated."""
    sentences = mask.shape[0]
    beams = query.shape[0] // max(1, sentences)
    queries = query.reshape(sentences, beams, query.shape[-1])
    at = steps.reshape(sentences, beams)
    attended = look(queries, memory["look"], mask, at, weights=weights)
    context = attended.output.flatten(0, 1).to(query.dtype)
    if attended.weights is None:
        return context, None
    return context, attended.weights.transpose(1, 2).flatten(0, 1)  # (row, head, source)


def stepwise(
    decoder: Decoder, memory: dict[str, Any], mask: Mask, embedded: Tensor, *, weights: bool
) -> Advanced:
    """All steps, one after the other."""
    state = decoder.start(memory, mask, 1)
    features, made = [], []
    for now in embedded.unbind(1):
        advanced = decoder.step(memory, mask, state, now, weights=weights)
        state = advanced.state
        features.append(advanced.features)
        made.append(advanced.weights)
    stacked = torch.stack(made, 2) if weights and made[0] is not None else None  # type: ignore[arg-type]
    return Advanced(torch.stack(features, 1), state, stacked)
