"""Everything that resuming needs, in one file that is written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from regard.errors import RegardError
from regard.record.tensor_file import under
from regard.translate.checkpoint import STATE_FILE, packed, unpacked
from regard.translate.config import Config
from regard.translate.training.corpus import Vocabularies


@dataclass(frozen=True)
class Position:
    """How far a training has come.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `step`     | steps made                                                                 |
    | `epoch`    | the current epoch, from 0                                                  |
    | `place`    | steps made within it                                                       |
    | `tokens`   | target tokens seen                                                         |
    | `seconds`  | time spent                                                                 |
    | `best`     | what `Best.table` gave                                                     |
    | `ranks`    | processes that train together                                              |
    | `data`     | the fingerprint of the training examples                                   |
    | `valid`    | that of the validation examples; None in runs that did not note it         |
    | `pending_tokens` | target tokens of the steps that no line of the log has told yet      |
    """

    step: int = 0
    epoch: int = 0
    place: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    data: int = 0
    valid: int | None = None
    pending_tokens: int = 0


@dataclass(frozen=True, eq=False)
class State:
    """A training, interrupted: `random` has the generators of every rank, `pending` the losses
    since the last line of the log."""

    position: Position
    config: Config
    vocabularies: Vocabularies
    weights: Mapping[str, Tensor]
    optimiser: dict[str, Tensor]
    random: list[dict[str, Tensor]]
    pending: Tensor


def save_state(path: Path, state: State) -> None:
    """Write a state."""
    vocabularies = state.vocabularies
    header, tensors = packed(state.config, vocabularies.source, vocabularies.target, state.weights)
    tensors |= {f"optimiser.{name}": tensor for name, tensor in state.optimiser.items()}
    for rank, generators in enumerate(state.random):
        tensors |= {f"random.{rank}.{name}": tensor for name, tensor in generators.items()}
    tensors["pending"] = state.pending
    STATE_FILE.write(path, tensors, {**header, "position": vars(state.position)})


def load_state(path: Path) -> State:
    """Read a state."""
    header, tensors = STATE_FILE.read(path)
    config, source, target, weights = unpacked(path, header, tensors)
    try:
        position = Position(**header["position"])
        random = [under(f"random.{rank}.", tensors) for rank in range(position.ranks)]
        pending = tensors["pending"]
    except (KeyError, TypeError) as error:
        raise RegardError(f"{path}: its header is not that of a training: {error}") from error
    optimiser = under("optimiser.", tensors)
    vocabularies = Vocabularies(source, target)
    return State(position, config, vocabularies, weights, optimiser, random, pending)


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers, as `number of the parameter.name`."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in state.items()
        for name, value in values.items()
        if value is not None
    }


def restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser back what it remembered."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})
