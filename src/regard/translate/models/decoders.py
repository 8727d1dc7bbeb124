"""Recurrent decoders: without attention, Bahdanau's (2015) and Luong's (2015)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.translate.models.attentions import SourceAttention
from regard.translate.models.cells import CellStack, CellState
from regard.translate.models.contract import EncoderOutput
from regard.types import Kind

CROSS = "cross"  #: the site of the attention that a word is predicted from
ALIGN = "align"  #: that of the attention which looks for the word that was just read

Mask = Bool[Tensor, "batch source"]
State = dict[str, Any]  #: of a decoder between two steps, one entry per row


class DecoderStep(NamedTuple):
    """One step, or all of them: features, the state after them, weights by site where asked."""

    features: Tensor
    state: Any
    weights: dict[str, Tensor]


class Bridge(nn.Module):
    """The decoder's first state, of each layer, from the encoder's summary of the same layer.

    h₀ = tanh(W summary); an LSTM's memory starts from a product of its own.
    """

    def __init__(self, summaries: list[int], cells: CellStack) -> None:
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
        return F.dropout(self.linear(torch.cat(parts, -1)).tanh(), self.dropout, self.training)


class Decoder(nn.Module, ABC):
    """From an encoded source and embedded target tokens to features, step by step or all at once.

    `encoded.memory` is what `fix` returned, once per sentence; a state has one entry per row, and
    sentence i with `beams` rows has the rows from i · beams on.
    """

    cells: CellStack
    bridge: Bridge

    @property
    def attentions(self) -> dict[str, SourceAttention]:
        """The attentions to the source, by site."""
        return {}

    @property
    def kind(self) -> Kind:
        return next((look.kind for look in self.attentions.values()), "distribution")

    def fix(self, annotations: Tensor, summaries: list[Tensor], mask: Mask) -> dict[str, Any]:
        """The memory of a source: the first states, and each attention's keys and values."""
        fixed = {site: look.fix(annotations, mask) for site, look in self.attentions.items()}
        return {"start": self.bridge(summaries), **fixed}

    def start(self, encoded: EncoderOutput, beams: int) -> State:
        """The state before the first step."""
        cells = tuple(
            tuple(tensor.repeat_interleave(beams, 0) for tensor in layer)
            for layer in encoded.memory["start"]
        )
        return {"cells": cells}

    @abstractmethod
    def step(
        self,
        encoded: EncoderOutput,
        state: State,
        embedded: Float[Tensor, "row width"],
        *,
        weights: bool = False,
    ) -> DecoderStep:
        """One step: features (row, width), the state after it, weights (row, 1, source)."""

    @abstractmethod
    def over(
        self,
        encoded: EncoderOutput,
        embedded: Float[Tensor, "batch target width"],
        *,
        weights: bool = False,
    ) -> DecoderStep:
        """All steps: features (batch, target, width), weights (batch, 1, target, source)."""


class PlainDecoder(Decoder):
    """A decoder that sees the source through its first state only (Sutskever et al. 2014)."""

    def __init__(self, cells: CellStack, bridge: Bridge, readout: Readout) -> None:
        super().__init__()
        self.cells = cells
        self.bridge = bridge
        self.readout = readout

    def step(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        output, cells = self.cells.advance(embedded, state["cells"])
        return DecoderStep(self.readout(output), {"cells": cells}, {})

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        return DecoderStep(
            self.readout(self.cells.over(embedded, encoded.memory["start"])), None, {}
        )


class AttentionDecoder(Decoder):
    """A decoder that attends to the source at every step, and counts its steps.

    Args:
        cells: the recurrence.
        bridge: from the encoder's last states to the decoder's first.
        look: the attention.
        readout: from the results of a step to its features.
    """

    def __init__(
        self, cells: CellStack, bridge: Bridge, look: SourceAttention, readout: Readout
    ) -> None:
        super().__init__()
        self.cells = cells
        self.bridge = bridge
        self.look = look
        self.readout = readout

    @property
    def attentions(self) -> dict[str, SourceAttention]:
        return {CROSS: self.look}

    def start(self, encoded: EncoderOutput, beams: int) -> State:
        state = super().start(encoded, beams)
        steps = torch.zeros(
            encoded.mask.shape[0] * beams, dtype=torch.long, device=encoded.mask.device
        )
        return {**state, "steps": steps}

    def _by_rows(
        self,
        query: Float[Tensor, "row width"],
        encoded: EncoderOutput,
        steps: Int[Tensor, " row"],
        weights: bool,
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The context of each attention, from rows, and its weights (row, 1, source) by site.

        Beams are on the query axis, so that nothing of the source is repeated.
        """
        sentences = encoded.mask.shape[0]
        beams = query.shape[0] // max(1, sentences)
        queries = query.reshape(sentences, beams, query.shape[-1])
        at = steps.reshape(sentences, beams)
        contexts, by_site = [], {}
        for site, look in self.attentions.items():
            attended = look(queries, encoded.memory[site], encoded.mask, at, weights=weights)
            contexts.append(attended.output.flatten(0, 1).to(query.dtype))
            if weights:
                by_site[site] = attended.weights.transpose(1, 2).flatten(0, 1)
        return contexts, by_site


def stacked(steps: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The weights of all steps by site, (batch, 1, target, source), from those of each."""
    return {site: torch.stack([weights[site] for weights in steps], 2) for site in steps[0]}


def stepwise(
    decoder: Decoder, encoded: EncoderOutput, embedded: Tensor, *, weights: bool
) -> DecoderStep:
    """All steps, one after the other."""
    state = decoder.start(encoded, 1)
    features, step_weights = [], []
    for step_input in embedded.unbind(1):
        advanced = decoder.step(encoded, state, step_input, weights=weights)
        state = advanced.state
        features.append(advanced.features)
        step_weights.append(advanced.weights)
    return DecoderStep(torch.stack(features, 1), state, stacked(step_weights))


class Wiring(nn.Module):
    """Query, cell input and readout input of a `PreviousState` decoder: Bahdanau's."""

    def query(self, embedded: Tensor, before: Tensor) -> Tensor:
        """The query of the attention."""
        return before

    def entry(self, embedded: Tensor, context: Tensor) -> Tensor:
        """The input of the cell."""
        return torch.cat([embedded, context], -1)

    def parts(self, output: Tensor, embedded: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """The inputs of the readout."""
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
    """Bahdanau et al. 2015: the *previous* state sᵢ₋₁ is the query, the context goes into the cell.

    αᵢ from sᵢ₋₁, cᵢ; sᵢ = cell([yᵢ₋₁; cᵢ], sᵢ₋₁); features tanh(W [sᵢ; yᵢ₋₁; cᵢ]). With more than
    one layer the first attends.

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
        output, context, step_weights, after = self._advance(encoded, state, embedded, weights)
        features = self.readout(*self.wiring.parts(output, embedded, context))
        return DecoderStep(features, after, step_weights)

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        """The readout takes all steps at once: nothing of it goes back into the recurrence."""
        state = self.start(encoded, 1)
        outputs, contexts, all_weights = [], [], []
        for step_input in embedded.unbind(1):
            output, context, step_weights, state = self._advance(
                encoded, state, step_input, weights
            )
            outputs.append(output)
            contexts.append(context)
            all_weights.append(step_weights)
        inputs = torch.stack(outputs, 1), embedded, torch.stack(contexts, 1)
        features = self.readout(*self.wiring.parts(*inputs))
        return DecoderStep(features, state, stacked(all_weights))

    def _advance(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], State]:
        """One step without the readout: output, context, weights, the state after it."""
        query = self.wiring.query(embedded, state["cells"][0][0])
        (context,), step_weights = self._by_rows(query, encoded, state["steps"], weights)
        output, cells = self.cells.advance(self.wiring.entry(embedded, context), state["cells"])
        return output, context, step_weights, {"cells": cells, "steps": state["steps"] + 1}


class CurrentState(AttentionDecoder):
    """Luong et al. 2015: the state hₜ is the query, and h̃ₜ = tanh(W_c [cₜ; hₜ]) the features.

    Nothing of the attention goes back into the recurrence, so whole targets go through the cells at
    once, and then through the attention at once.

    Args:
        cells: the recurrence.
        bridge: from the encoder's last states to the decoder's first.
        look: the attention that a word is predicted from.
        readout: from [contexts; state] to the features.
        aligner: a second attention with the same query, whose context joins the features too:
            h̃ₜ = tanh(W_c [cₜ; aₜ; hₜ]). The state has just read a word, which guidance teaches the
            aligner to find in the source, so its rows are read as "input".
    """

    def __init__(
        self,
        cells: CellStack,
        bridge: Bridge,
        look: SourceAttention,
        readout: Readout,
        aligner: SourceAttention | None = None,
    ) -> None:
        super().__init__(cells, bridge, look, readout)
        self.aligner = aligner

    @property
    def attentions(self) -> dict[str, SourceAttention]:
        both = {CROSS: self.look, ALIGN: self.aligner}
        return {site: look for site, look in both.items() if look is not None}

    def step(
        self, encoded: EncoderOutput, state: State, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        output, cells = self.cells.advance(embedded, state["cells"])
        contexts, step_weights = self._by_rows(output, encoded, state["steps"], weights)
        after = {"cells": cells, "steps": state["steps"] + 1}
        return DecoderStep(self.readout(*contexts, output), after, step_weights)

    def over(
        self, encoded: EncoderOutput, embedded: Tensor, *, weights: bool = False
    ) -> DecoderStep:
        output = self.cells.over(embedded, encoded.memory["start"])
        steps = torch.arange(output.shape[1], device=encoded.mask.device).expand(output.shape[:2])
        contexts, by_site = [], {}
        for site, look in self.attentions.items():
            attended = look(output, encoded.memory[site], encoded.mask, steps, weights=weights)
            contexts.append(attended.output)
            if weights:
                by_site[site] = attended.weights
        return DecoderStep(self.readout(*contexts, output), None, by_site)


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
