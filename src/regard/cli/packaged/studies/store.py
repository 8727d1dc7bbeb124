"""Weights of the studies' models: kept in half precision, one file each."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

from torch import nn

from regard.record.tensor_file import TensorFile

FILE = TensorFile("study", "regard-study 1")
FOLDER = Path(__file__).parent / "weights"

_Model = TypeVar("_Model", bound=nn.Module)


def save(name: str, model: nn.Module) -> Path:
    """Keep what a study trained, in the checkout."""
    path = FOLDER / f"{name}.safetensors"
    FILE.write(path, {part: weights.half() for part, weights in model.state_dict().items()}, {})
    return path


def load(name: str, model: _Model) -> _Model:
    """The model with its trained weights, in float32."""
    with as_file(files(__package__) / "weights" / f"{name}.safetensors") as path:
        _, tensors = FILE.read(path)
    model.load_state_dict({part: weights.float() for part, weights in tensors.items()})
    return model.eval()
