"""Controllers: the network inside a machine with a memory, one step at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_sizes

#: What a controller remembers of earlier steps, (batch, …) each; nothing for a feed-forward one.
ControllerState = tuple[Tensor, ...]


class Controller(nn.Module, ABC):
    """Takes the input of a step beside what was read from the memory, and gives features.

    Args:
        input_width: features that come in: those of the input and those of all read heads.
        width: features that go out.
    """

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        check_sizes(type(self).__name__, input_width=input_width, width=width)
        self.input_width, self.width = input_width, width

    @abstractmethod
    def initial(self, batch: int) -> ControllerState:
        """What the controller remembers before the first step."""

    @abstractmethod
    def forward(
        self, features: Float[Tensor, "batch input_width"], state: ControllerState
    ) -> tuple[Float[Tensor, "batch width"], ControllerState]:
        """One step: features, and what to remember."""

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return f"{self.input_width} → {self.width}"


class LSTMController(Controller):
    """One LSTM cell, which starts at zeros: the controller of most published results.

    >>> import torch
    >>> from regard.memory.controllers import LSTMController
    >>> controller = LSTMController(28, width=100)
    >>> features, (hidden, cell) = controller(torch.zeros(2, 28), controller.initial(2))
    >>> features.shape, cell.shape
    (torch.Size([2, 100]), torch.Size([2, 100]))
    """

    def __init__(self, input_width: int, width: int = 100) -> None:
        super().__init__(input_width, width)
        self.cell = nn.LSTMCell(input_width, width)

    def initial(self, batch: int) -> ControllerState:
        zeros = self.cell.weight_hh.new_zeros(batch, self.width)
        return zeros, zeros

    def forward(
        self, features: Float[Tensor, "batch input_width"], state: ControllerState
    ) -> tuple[Float[Tensor, "batch width"], ControllerState]:
        hidden, cell = self.cell(features, (state[0], state[1]))
        return hidden, (hidden, cell)


class FeedForwardController(Controller):
    """tanh(W x + b): all that is remembered lies in the memory.

    >>> import torch
    >>> from regard.memory.controllers import FeedForwardController
    >>> features, state = FeedForwardController(28, width=100)(torch.zeros(2, 28), ())
    >>> features.shape, state
    (torch.Size([2, 100]), ())
    """

    def __init__(self, input_width: int, width: int = 100) -> None:
        super().__init__(input_width, width)
        self.to_features = nn.Linear(input_width, width)

    def initial(self, batch: int) -> ControllerState:
        return ()

    def forward(
        self, features: Float[Tensor, "batch input_width"], state: ControllerState
    ) -> tuple[Float[Tensor, "batch width"], ControllerState]:
        return torch.tanh(self.to_features(features)), ()
