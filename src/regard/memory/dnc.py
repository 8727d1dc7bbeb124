"""The differentiable neural computer: a memory that allocates slots and remembers their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from regard.memory import addressing
from regard.memory.controllers import Controller, ControllerState
from regard.memory.machine import Machine, MachineState
from regard.types import register_pytree


@dataclass(frozen=True, eq=False, repr=False)
class DNCState(MachineState):
    """Where a DNC goes on: memory, heads, controller, what is in use, and the order of writing."""

    usage: Float[Tensor, "batch slot"]
    precedence: Float[Tensor, "batch slot"]
    links: Float[Tensor, "batch slot slot"]


register_pytree(DNCState)


class DNC(Machine[DNCState]):
    """hₜ = controller(xₜ, rₜ₋₁); one head writes Mₜ, others read rₜ from it; yₜ = W [hₜ, rₜ] + b.

    Graves et al. 2016, "Hybrid computing using a neural network with dynamic external memory",
    methods. The functions of `regard.memory.addressing` are its equations, in the order of a step:
    usage, allocation, write weights, memory, links, precedence, then read weights, which mix slots
    written before, slots with similar content and slots written after those read last.

    | here              | paper        | meaning                                              |
    |-------------------|--------------|------------------------------------------------------|
    | `slots`           | N            | rows of the memory                                   |
    | `slot_width`      | W            | features per row                                     |
    | `read_heads`      | R            | heads that read                                      |
    | `to_interface`    | W_ξ          | features → all of ξ, W R + 3 W + 5 R + 3 numbers     |
    | `to_output`       | W_y, W_r     | features and reads → output                          |
    | `state.links`     | L            | [i, j]: slot i was written right after slot j        |

    Strengths are 1 + softplus as in the paper; the authors' code takes softplus. As in that code no
    gradient flows from the usage into write weights.

    Departures. Linear maps have a bias, and cosines 10⁻⁶ under the root. The memory and its weights
    are at least float32, in half precision and under autocast too. The state starts at zeros:
    nothing is in use, nothing was written, and heads attend to nothing (weights sum to at most 1).

    Clip gradients when training (`torch.nn.utils.clip_grad_norm_`, 10).

    Args:
        input_width: features per step of the input.
        output_width: features per step of the output.
        slots: rows of the memory.
        slot_width: features per row.
        read_heads: heads that read; one head writes.
        controller: a finished `Controller` for input_width + read_heads · slot_width features;
            `LSTMController` of width 100 when None.

    >>> import torch
    >>> from regard.memory import DNC
    >>> machine = DNC(9, 8, slots=16, read_heads=2)
    >>> answer = machine(torch.randn(2, 5, 9), weights=True)
    >>> answer.output.shape, answer.trace["read"].weights().shape
    (torch.Size([2, 5, 8]), torch.Size([2, 2, 5, 16]))
    """

    kind = "partial"
    state_class = DNCState

    def __init__(
        self,
        input_width: int,
        output_width: int,
        *,
        slots: int = 64,
        slot_width: int = 20,
        read_heads: int = 1,
        controller: Controller | None = None,
    ) -> None:
        super().__init__(
            input_width,
            output_width,
            slots=slots,
            slot_width=slot_width,
            read_heads=read_heads,
            controller=controller,
        )
        self._gates = [slot_width, read_heads, 1, 1]
        self.connect(
            [
                read_heads * slot_width,  # read keys
                slot_width,  # write key
                slot_width,  # what is written
                1 + read_heads,  # strengths of writing and reading
                sum(self._gates),  # erase vector, free gates, allocation gate, write gate
                3 * read_heads,  # read modes
            ]
        )

    def initial(self, batch: int) -> DNCState:
        like = self.memory_like()
        return DNCState(
            memory=like.new_zeros(batch, self.slots, self.slot_width),
            usage=like.new_zeros(batch, self.slots),
            precedence=like.new_zeros(batch, self.slots),
            links=like.new_zeros(batch, self.slots, self.slots),
            read_weights=like.new_zeros(batch, self.read_heads, self.slots),
            write_weights=like.new_zeros(batch, 1, self.slots),
            reads=like.new_zeros(batch, self.read_heads, self.slot_width),
            controller=self.controller.initial(batch),
        )

    def address(
        self, interface: Sequence[Tensor], state: DNCState, controller: ControllerState
    ) -> DNCState:
        memory = state.memory
        read_keys, write_key, vector, strengths, gates, modes = interface
        write_strength, read_strength = (1 + softplus(strengths)).split([1, self.read_heads], dim=1)
        erase, free_gates, allocation_gate, write_gate = gates.sigmoid().split(self._gates, dim=1)

        usage = addressing.usage(
            state.usage, state.write_weights[:, 0], state.read_weights, free_gates
        )
        content = addressing.content_weights(write_key[:, None], memory, write_strength)
        write_weights = addressing.write_weights(
            addressing.allocation(usage), content[:, 0], allocation_gate, write_gate
        )
        memory = addressing.write(memory, write_weights[:, None], erase[:, None], vector[:, None])
        links = addressing.links(state.links, write_weights, state.precedence)
        precedence = addressing.precedence(state.precedence, write_weights)

        read_weights = addressing.read_weights(
            modes.unflatten(1, (self.read_heads, 3)).softmax(-1),
            addressing.backward_weights(links, state.read_weights),
            addressing.content_weights(
                read_keys.unflatten(1, (self.read_heads, self.slot_width)), memory, read_strength
            ),
            addressing.forward_weights(links, state.read_weights),
        )
        reads = addressing.read(memory, read_weights)
        return DNCState(
            memory,
            read_weights,
            write_weights[:, None],
            reads,
            controller,
            usage,
            precedence,
            links,
        )
