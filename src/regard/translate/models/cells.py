"""Recurrent cells: one layer, one direction; the inputs' share of the gates is made beforehand."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: What a cell carries from step to step, each (row, hidden); the first is what others see of it.
CellState = tuple[Tensor, ...]


class Cell(nn.Module, ABC):
    """A recurrent cell in two halves: `gates`, a product over any number of steps at once, and
    `advance`, which needs the state and so goes step by step.

    `n_gates` times `hidden` numbers are a step's gates; `n_states` tensors are its state.
    """

    n_gates: int
    n_states: int

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(width, self.n_gates * hidden)
        self.from_state = nn.Linear(hidden, self.n_gates * hidden)
        nn.init.xavier_uniform_(self.from_input.weight)
        for gate in self.from_state.weight.data.split(hidden):
            nn.init.orthogonal_(gate)
        nn.init.zeros_(self.from_input.bias)
        nn.init.zeros_(self.from_state.bias)

    def gates(self, inputs: Tensor) -> Tensor:
        """The inputs' share of the gates: (…, width) to (…, gates × hidden)."""
        gates: Tensor = self.from_input(inputs)
        return gates

    @abstractmethod
    def advance(self, gates: Tensor, state: CellState) -> CellState:
        """One step: gates (row, gates × hidden) and a state make the next state."""

    def over(self, gates: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """All steps: gates (row, step, gates × hidden) to outputs (row, step, hidden)."""
        outputs = []
        for now in gates.unbind(1):
            state = self.advance(now, state)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    def zeros(self, like: Tensor) -> CellState:
        """A state of zeros for as many rows as `like` has."""
        zeros = self.from_state.weight.new_zeros(like.shape[0], self.hidden)
        return (zeros,) * self.n_states


class GRU(Cell):
    """r, z = σ(gates + U h), n = tanh(gate + r ∘ (Uₙ h + b)), h' = (1 − z) ∘ n + z ∘ h.

    Cho et al. 2014, "Learning phrase representations using RNN encoder–decoder", in the form that
    torch and cuDNN use: the reset gate multiplies after the product with Uₙ, not before.
    """

    n_gates = 3
    n_states = 1

    def advance(self, gates: Tensor, state: CellState) -> CellState:
        (before,) = state
        own = self.from_state(before)
        middle = 2 * self.hidden
        reset, update = (gates[:, :middle] + own[:, :middle]).sigmoid().chunk(2, -1)
        new = torch.addcmul(gates[:, middle:], reset, own[:, middle:]).tanh()
        return (new + update * (before - new),)


class LSTM(Cell):
    """i, f, o = σ(·), c' = f ∘ c + i ∘ tanh(·), h' = o ∘ tanh(c').

    Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000, whose bias starts at 1.
    """

    n_gates = 4
    n_states = 2

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        nn.init.ones_(self.from_state.bias.data[hidden : 2 * hidden])

    def advance(self, gates: Tensor, state: CellState) -> CellState:
        before, memory = state
        entry, forget, candidate, exit_ = (gates + self.from_state(before)).chunk(4, -1)
        memory = forget.sigmoid() * memory + entry.sigmoid() * candidate.tanh()
        return exit_.sigmoid() * memory.tanh(), memory


class CellStack(nn.Module):
    """Cells on top of each other, with dropout between them; a state is a tuple of theirs."""

    def __init__(self, cells: list[Cell], dropout: float = 0.0) -> None:
        super().__init__()
        self.cells = nn.ModuleList(cells)
        self.dropout = dropout

    @property
    def layers(self) -> list[Cell]:
        """The cells, the lowest first."""
        return list(self.cells)  # type: ignore[arg-type]

    def _between(self, inputs: Tensor, layer: int) -> Tensor:
        return F.dropout(inputs, self.dropout, self.training) if layer else inputs

    def advance(
        self, inputs: Tensor, states: tuple[CellState, ...]
    ) -> tuple[Tensor, tuple[CellState, ...]]:
        """One step of all layers: inputs (row, width) to (row, hidden), and the next states."""
        after = []
        for layer, cell in enumerate(self.layers):
            state = cell.advance(cell.gates(self._between(inputs, layer)), states[layer])
            after.append(state)
            inputs = state[0]
        return inputs, tuple(after)

    def over(self, inputs: Tensor, states: tuple[CellState, ...]) -> Tensor:
        """All steps of all layers: (row, step, width) to (row, step, hidden)."""
        for layer, cell in enumerate(self.layers):
            inputs, _ = cell.over(cell.gates(self._between(inputs, layer)), states[layer])
        return inputs
