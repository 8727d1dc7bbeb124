"""Run under torchrun: an unbroken training and one in two parts, without dropout and with it; each
process writes down what it saw, what it would draw at each step, and what it ended with."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from regard.translate.config import Config
from regard.translate.training import train
from regard.translate.training.step import Stepper

DROPPED = (
    "model.dropout=0.5",
    'training.precision="32"',
    "training.optimiser=adam",  # which has something to remember
    "training.optimiser.rate=3e-3",
    "training.optimiser.clip=1.0",
)


def next_draws() -> torch.Tensor:
    """What torch's generator gives next, which it still gives afterwards."""
    with torch.random.fork_rng():
        return torch.rand(8)


def noted(folder: Path, name: str, *settings: str) -> None:
    seen: list[int] = []
    drawn: list[torch.Tensor] = []
    steppers: list[Stepper] = []
    make = Stepper.make

    def make_and_note(self, step, rate, forcing):
        steppers[:] = [self]
        drawn.append(next_draws())
        seen.extend(number for batch in step.batches for number in batch)
        return make(self, step, rate, forcing)

    Stepper.make = make_and_note
    try:
        train(Config.from_file(folder / "config.toml", settings), folder / name, resume=True)
    finally:
        Stepper.make = make
    found = {str(place): one.detach() for place, one in enumerate(steppers[0].parameters)}
    file = folder / f"{name}-{os.environ['RANK']}.safetensors"
    save_file(found | {"seen": torch.tensor(seen), "drawn": torch.stack(drawn)}, str(file))


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    for name, settings in (("", ()), ("dropped-", DROPPED)):
        noted(place, f"{name}run", *settings)
        noted(place, f"{name}parts", *settings, "training.steps=3")
        noted(place, f"{name}parts", *settings)
