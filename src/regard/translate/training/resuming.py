"""What resuming a run needs: saved, restored, and checked against the new configuration."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.optim import Optimizer

from regard.errors import RegardError
from regard.record.tensor_file import under
from regard.translate.checkpoint import STATE_FILE, packed, unpacked
from regard.translate.config import Config
from regard.translate.training.corpus import Vocabularies


def random_states() -> dict[str, Tensor]:
    """The state of every random generator, as tensors."""
    _, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = numpy.random.get_state()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": torch.tensor([gauss is not None, gauss or 0.0], dtype=torch.float64),
        "numpy": torch.tensor([*map(int, keys), int(position), int(has_gauss)]),
        "numpy_gauss": torch.tensor(float(cached), dtype=torch.float64),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Tensor]) -> None:
    """Restore every random generator."""
    has_python_gauss, gauss = states["python_gauss"].tolist()
    words = tuple(states["python"].tolist())
    random.setstate((3, words, gauss if has_python_gauss else None))
    *keys, position, has_gauss = states["numpy"].tolist()
    uniform = numpy.array(keys, dtype=numpy.uint32)
    cached = states["numpy_gauss"].item()
    numpy.random.set_state(("MT19937", uniform, position, has_gauss, cached))
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def seed_all(seed: int) -> None:
    """Seed every random generator."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore every random generator on exit."""
    before = random_states()
    try:
        yield
    finally:
        restore_random_states(before)


@dataclass(frozen=True)
class Position:
    """The position of a training.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `step`     | steps made                                                                 |
    | `epoch`    | the current epoch, from 0                                                  |
    | `block`    | the current block of its examples, from 0                                  |
    | `place`    | steps made within that                                                     |
    | `tokens`   | target tokens seen                                                         |
    | `seconds`  | time spent                                                                 |
    | `best`     | what `Best.table` gave                                                     |
    | `ranks`    | processes that train together                                              |
    | `data`     | the fingerprint of the training examples                                   |
    | `valid`    | that of the validation examples; None in runs that did not note it         |
    | `pending_tokens` | target tokens of the steps that no line of the log has told yet      |
    | `threads`  | threads of torch; 0 in runs that did not note it                           |
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
    threads: int = 0
    block: int = 0


@dataclass(frozen=True, eq=False)
class State:
    """An interrupted training: `random` holds the generators of every rank, `pending` the losses
    that are not logged yet."""

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
    """The state of an optimiser, as `number of the parameter.name`."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, values in state.items()
        for name, value in values.items()
        if value is not None
    }


def restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of an optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = tensor
    optimiser.load_state_dict(optimiser.state_dict() | {"state": state})


#: Settings that say where in the data a step is, what the optimiser remembers, or
#: what the best so far are the best of.
_HELD = (
    "data.buffer",
    "training.seed",
    "training.batch_tokens",
    "training.batch_sentences",
    "training.accumulate",
    "training.sample_pieces",
    "training.optimiser.name",
    "training.validation.metric",
    "training.validation.sentences",
)


def check_settings(before: Config, now: Config) -> None:
    """Refuse to resume with another model, data order, optimiser, metric or frozen embedding."""
    vectors = [(config.vectors.frozen, *config.vectors.files) for config in (before, now)]
    if vectors[0] != vectors[1]:
        raise RegardError(
            f"the run began with {before.vectors} and cannot be resumed with {now.vectors}"
        )
    fixed_sections = (
        ("model",) if now.training.start else ("vocabulary", "model")
    )  # start brings its own
    fixed = [
        f"{section}.{key}" for section in fixed_sections for key in vars(getattr(before, section))
    ]
    for name in (*_HELD, *fixed):
        values = [attrgetter(name)(config) for config in (before, now)]
        if values[0] != values[1]:
            raise RegardError(
                f"{name} is {values[1]!r}, but the run began with {values[0]!r}: it cannot be "
                "resumed with another one"
            )


def changed_settings(before: Config, now: Config) -> list[str]:
    """A line for each setting that has changed."""
    was, is_now = (_flat(config.table()) for config in (before, now))
    return [
        f"{name} is now {is_now[name]!r}; the run had {was[name]!r}"
        for name in was
        if was[name] != is_now[name]
    ]


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables flattened to dotted names."""
    settings: dict[str, Any] = {}
    for key, value in table.items():
        entries = (
            _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
        )
        settings |= entries
    return settings


def check_surroundings(before: Position, now: Position) -> None:
    """Refuse to resume with other data or another number of processes."""
    if now.ranks != before.ranks:
        raise RegardError(
            f"the run began with {before.ranks} processes and cannot be resumed with {now.ranks}"
        )
    if now.data != before.data:
        raise RegardError("the training pairs are not those that the run began with")
    if before.valid is not None and now.valid != before.valid:
        raise RegardError("the validation pairs are not those that the run began with")
