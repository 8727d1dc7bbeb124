"""The neural Turing machine: a controller whose heads move over a memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from regard.errors import ShapeError
from regard.memory import addressing
from regard.memory.controllers import Controller, ControllerState
from regard.memory.machine import Machine, MachineState
from regard.types import register_pytree


class NTMState(MachineState):
    """Where an NTM goes on: memory, heads, controller."""


register_pytree(NTMState)


class NTM(Machine[NTMState]):
    """hₜ = controller(xₜ, rₜ₋₁); its heads read rₜ from Mₜ₋₁ and write Mₜ; yₜ = W [hₜ, rₜ] + b.

    Graves, Wayne & Danihelka 2014, "Neural Turing machines". The functions of
    `regard.memory.addressing` are its equations 2 to 9; each head goes through

        content c = softmax(β cos(k, M)) → g c + (1 − g) w' → circular shift by s → w^γ, normalised.

    | here              | paper | meaning                                                       |
    |-------------------|-------|---------------------------------------------------------------|
    | `slots`           | N     | rows of the memory                                            |
    | `slot_width`      | M     | features per row                                              |
    | `shifts`          |       | heads move by −shifts … shifts                                |
    | `to_interface`    |       | features → k, β, g, s, γ of all heads, e and a of the writers |
    | `to_output`       |       | features and reads → output                                   |
    | `state`           |       | memory, weights, reads, controller                            |

    β = softplus, γ = 1 + softplus, g and e = σ, s = softmax, a = tanh.

    What the paper leaves open. All heads address the memory as it was before the step, readers read
    it, then the writers write. A memory starts at 10⁻⁶ everywhere (Collier & Beel 2018,
    "Implementing neural Turing machines": the surest start of those they compare), which is no
    parameter. Heads start at slot 0: weights of zeros are no distribution, and with equal weights
    over equal slots nothing could tell one slot from another. The memory and its weights are at
    least float32, in half precision and under autocast too.

    Clip gradients when training (`torch.nn.utils.clip_grad_norm_`, 10): they are heavy-tailed.

    Args:
        input_width: features per step of the input.
        output_width: features per step of the output.
        slots: rows of the memory.
        slot_width: features per row.
        read_heads: heads that read.
        write_heads: heads that write.
        shifts: how far a head can move in one step, either way; 0 leaves content alone.
        controller: a finished `Controller` for input_width + read_heads · slot_width features;
            `LSTMController` of width 100 when None.

    >>> import torch
    >>> from regard.memory import NTM
    >>> machine = NTM(9, 8)
    >>> answer = machine(torch.randn(2, 5, 9), weights=True)
    >>> answer.output.shape, answer.trace["read"].weights().shape
    (torch.Size([2, 5, 8]), torch.Size([2, 1, 5, 128]))
    """

    kind = "distribution"
    state_class = NTMState

    def __init__(
        self,
        input_width: int,
        output_width: int,
        *,
        slots: int = 128,
        slot_width: int = 20,
        read_heads: int = 1,
        write_heads: int = 1,
        shifts: int = 1,
        controller: Controller | None = None,
    ) -> None:
        super().__init__(
            input_width,
            output_width,
            slots=slots,
            slot_width=slot_width,
            read_heads=read_heads,
            write_heads=write_heads,
            controller=controller,
        )
        if not 0 <= 2 * shifts < slots:
            raise ShapeError(
                f"NTM: shifts {shifts} over {slots} slots, expected 2 · shifts + 1 of them, from "
                f"{-shifts} to {shifts}, to be distinct: at most {(slots - 1) // 2}"
            )
        self.shifts, heads = shifts, read_heads + write_heads
        self.connect(
            [
                heads * slot_width,  # keys
                2 * heads,  # strengths and exponents
                heads + write_heads * slot_width,  # gates, erase vectors
                heads * (2 * shifts + 1),  # shifts
                write_heads * slot_width,  # vectors that are added
            ]
        )

    def initial(self, batch: int) -> NTMState:
        like = self.memory_like()
        memory = like.new_full((batch, self.slots, self.slot_width), 1e-6)
        weights = like.new_zeros(batch, self.read_heads + self.write_heads, self.slots)
        weights[..., 0] = 1.0
        read_weights, write_weights = weights.split([self.read_heads, self.write_heads], dim=1)
        reads = addressing.read(memory, read_weights)
        return NTMState(memory, read_weights, write_weights, reads, self.controller.initial(batch))

    def address(
        self, interface: Sequence[Tensor], state: NTMState, controller: ControllerState
    ) -> NTMState:
        memory, heads = state.memory, self.read_heads + self.write_heads
        keys, sharpness, gates, kernels, vectors = interface
        strength, exponent = softplus(sharpness).split(heads, dim=1)
        gate, erase = gates.sigmoid().split([heads, self.write_heads * self.slot_width], dim=1)
        kernel = kernels.unflatten(1, (heads, -1)).softmax(-1)

        previous = torch.cat([state.read_weights, state.write_weights], dim=1)
        content = addressing.content_weights(
            keys.unflatten(1, (heads, self.slot_width)), memory, strength
        )
        weights = addressing.interpolate(content, previous, gate)
        weights = addressing.sharpen(addressing.shift(weights, kernel), 1 + exponent)
        read_weights, write_weights = weights.split([self.read_heads, self.write_heads], dim=1)

        reads = addressing.read(memory, read_weights)
        memory = addressing.write(
            memory,
            write_weights,
            erase.unflatten(1, (self.write_heads, self.slot_width)),
            vectors.tanh().unflatten(1, (self.write_heads, self.slot_width)),
        )
        return NTMState(memory, read_weights, write_weights, reads, controller)
