"""What machines with an external memory share: the walk over the steps, and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checks import check_sizes
from regard.errors import DtypeError, ShapeError, StateError, UnavailableError
from regard.memory.checks import check_features
from regard.memory.controllers import Controller, ControllerState, LSTMController
from regard.memory.steps import step_trace
from regard.record import Trace
from regard.softmax import autocasting
from regard.types import Kind, Weights, brief, register_pytree


@dataclass(frozen=True, eq=False, repr=False)
class MachineState:
    """Where a machine goes on: its memory, its heads, and what its controller remembers."""

    memory: Float[Tensor, "batch slot width"]
    read_weights: Float[Tensor, "batch read_head slot"]
    write_weights: Float[Tensor, "batch write_head slot"]
    reads: Float[Tensor, "batch read_head width"]
    controller: ControllerState

    def __repr__(self) -> str:
        return brief(self)


StateT = TypeVar("StateT", bound=MachineState)


@dataclass(frozen=True, eq=False, repr=False)
class MachineOutput(Generic[StateT]):
    """What a machine returns.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `output`  | (batch, step, output width)                                                 |
    | `state`   | after the last step: where the next call goes on                            |
    | `weights` | "read" and "write", each (batch, head, step, slot); None when not asked     |
    | `machine` | the name of the class, for the trace                                        |
    | `kind`    | what the weights are: a distribution, or partial                            |
    """

    output: Float[Tensor, "batch step output_width"]
    state: StateT
    weights: dict[str, Weights] | None = None
    machine: str = ""
    kind: Kind = "distribution"

    def __repr__(self) -> str:
        return brief(self)

    @property
    def trace(self) -> Trace:
        """The weights as records, "read" and "write": queries are steps, keys are slots."""
        if self.weights is None:
            raise UnavailableError(
                f"{self.machine}: no weights were kept; call it with weights=True to get a trace"
            )
        return step_trace(self.machine, self.weights, dict.fromkeys(self.weights, self.kind))


register_pytree(MachineOutput, static=("machine", "kind"))


class Machine(nn.Module, ABC, Generic[StateT]):
    """A controller and a memory; a subclass says how heads address the memory."""

    kind: Kind

    def __init__(
        self,
        input_width: int,
        output_width: int,
        *,
        slots: int,
        slot_width: int,
        read_heads: int,
        write_heads: int = 1,
        controller: Controller | None,
    ) -> None:
        super().__init__()
        sizes = {"input_width": input_width, "output_width": output_width}
        sizes |= {"slots": slots, "slot_width": slot_width}
        sizes |= {"read_heads": read_heads, "write_heads": write_heads}
        check_sizes(type(self).__name__, **sizes)
        reads_width = read_heads * slot_width
        if controller is None:
            controller = LSTMController(input_width + reads_width)
        if controller.input_width != input_width + reads_width:
            raise ShapeError(
                f"{type(self).__name__}: the controller takes {controller.input_width} features, "
                f"expected {input_width + reads_width}: {input_width} of the input and "
                f"{reads_width} of {read_heads} read heads (slot width {slot_width})"
            )
        self.input_width, self.output_width = input_width, output_width
        self.slots, self.slot_width = slots, slot_width
        self.read_heads, self.write_heads = read_heads, write_heads
        self.controller = controller

    def connect(self, interface: list[int]) -> None:
        """Add the linear maps around the memory; `interface` has the widths that `address` takes.

        A subclass calls it at the end of its constructor.
        """
        self.interface_widths, features = interface, self.controller.width
        self.to_interface = nn.Linear(features, sum(interface))
        self.to_output = nn.Linear(features + self.read_heads * self.slot_width, self.output_width)

    @abstractmethod
    def initial(self, batch: int) -> StateT:
        """The state before the first step, for so many examples."""

    @abstractmethod
    def address(
        self, interface: Sequence[Tensor], state: StateT, controller: ControllerState
    ) -> StateT:
        """Read and write: the next state, which takes over the controller's.

        Args:
            interface: what the controller emits, (batch, width) for each width of the interface.
            state: the state before the step.
            controller: what the controller remembers after the step.
        """

    def step(
        self, x: Float[Tensor, "batch input_width"], state: StateT
    ) -> tuple[Float[Tensor, "batch features"], StateT]:
        """One step: what `to_output` takes (controller and reads), and the next state."""
        hidden, controller = self.controller(
            torch.cat([x, state.reads.flatten(1).to(x.dtype)], dim=1), state.controller
        )
        interface = self.to_interface(hidden).to(state.memory.dtype)
        state = self.address(interface.split(self.interface_widths, dim=1), state, controller)
        return torch.cat([hidden, state.reads.flatten(1).to(hidden.dtype)], dim=1), state

    def forward(
        self,
        x: Float[Tensor, "batch step input_width"],
        *,
        state: StateT | None = None,
        weights: bool = False,
    ) -> MachineOutput[StateT]:
        """Run over a sequence.

        Args:
            x: (batch, step, input width).
            state: the state of an earlier output, to go on from; the initial one when None.
            weights: also return read and write weights of every step, and with them a trace.
        """
        check_features(self, "x", x, self.input_width, ("batch", "step"))
        self._check(x, state)
        if autocasting(x.device):
            with torch.autocast(x.device.type, enabled=False):
                return self._run(x.to(self.to_output.weight.dtype), state, weights)
        return self._run(x, state, weights)

    def _run(self, x: Tensor, state: StateT | None, weights: bool) -> MachineOutput[StateT]:
        state = self.initial(x.shape[0]) if state is None else state
        features, states = [], []
        for inputs in x.unbind(1):
            step_features, state = self.step(inputs, state)
            features.append(step_features)
            if weights:
                states.append(state)
        if not features:
            output = x.new_zeros(x.shape[0], 0, self.output_width)
        else:
            output = self.to_output(torch.stack(features, dim=1))
        matrices = self._weights(states, state) if weights else None
        return MachineOutput(output, state, matrices, type(self).__name__, self.kind)

    @staticmethod
    def _weights(states: list[StateT], last: StateT) -> dict[str, Weights]:
        if not states:
            sides = {"read": last.read_weights, "write": last.write_weights}
            return {name: rows[:, :, None][:, :, :0] for name, rows in sides.items()}
        return {
            "read": torch.stack([state.read_weights for state in states], dim=2),
            "write": torch.stack([state.write_weights for state in states], dim=2),
        }

    def _check(self, x: Tensor, state: StateT | None) -> None:
        if state is None:
            return
        name = type(self).__name__
        if type(state) is not self.state_class:
            raise StateError(
                f"{name}: state is a {type(state).__name__}, expected a "
                f"{self.state_class.__name__}, as in the `state` of an earlier output"
            )
        held, expected = _tensors(state), _tensors(self.initial(0))
        if len(held) != len(expected):
            sizes = len(state.controller), len(self.controller.initial(0))
            raise StateError(
                f"{name}: state: the controller holds {sizes[0]} tensors, expected {sizes[1]}; "
                "another module made this state"
            )
        for field, tensor in held.items():
            shape = (x.shape[0], *expected[field].shape[1:])
            if tensor.shape != shape:
                raise StateError(
                    f"{name}: state: {field} is {tuple(tensor.shape)}, expected {shape}; another "
                    "module or batch made this state"
                )
            if tensor.dtype != expected[field].dtype:
                raise DtypeError(
                    f"{name}: state: {field} is {tensor.dtype}, expected {expected[field].dtype}; "
                    "start a new one with the module as it is now"
                )

    @property
    @abstractmethod
    def state_class(self) -> type[StateT]:
        """The class of its states."""

    def memory_like(self) -> Tensor:
        """An empty tensor of the memory's dtype, at least float32, on the parameters' device."""
        weight = self.to_output.weight
        return weight.new_empty(0, dtype=torch.promote_types(weight.dtype, torch.float32))

    def extra_repr(self) -> str:
        """What `print(module)` shows besides its parts."""
        return f"{self.slots} slots × {self.slot_width}, {self.read_heads} read heads"


def _tensors(state: MachineState) -> dict[str, Tensor]:
    """Each tensor of a state by its field; those of the controller by their index."""
    held = {field.name: getattr(state, field.name) for field in fields(state)}
    controller = held.pop("controller")
    return held | {f"controller[{index}]": tensor for index, tensor in enumerate(controller)}
