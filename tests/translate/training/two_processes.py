"""Run under torchrun: an unbroken training and one in two parts; each process writes down what it
saw and what it ended with."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from regard.translate.config import Config
from regard.translate.training import train
from regard.translate.training.stepper import Stepper


def noted(folder: Path, name: str, *settings: str) -> None:
    seen: list[int] = []
    steppers: list[Stepper] = []
    make = Stepper.make

    def make_and_note(self, step, rate, forcing):
        steppers[:] = [self]
        seen.extend(number for batch in step.batches for number in batch)
        return make(self, step, rate, forcing)

    Stepper.make = make_and_note
    try:
        train(Config.from_file(folder / "config.toml", settings), folder / name, resume=True)
    finally:
        Stepper.make = make
    found = {str(place): one.detach() for place, one in enumerate(steppers[0].parameters)}
    file = folder / f"{name}-{os.environ['RANK']}.safetensors"
    save_file(found | {"seen": torch.tensor(seen)}, str(file))


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    noted(place, "run")
    noted(place, "parts", "training.steps=3")
    noted(place, "parts")
