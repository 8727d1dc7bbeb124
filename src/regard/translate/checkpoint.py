"""A trained translator as one file: configuration, vocabularies, weights.

Loading a file executes no code from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.record.tensor_file import OtherFormatError, TensorFile, under
from regard.translate.config import Config
from regard.translate.models.build import build_model
from regard.translate.models.contract import TranslationModel
from regard.translate.shipped import SHIPPED, is_shipped, shipped_file
from regard.translate.vocabulary import Vocabulary, vocabulary_from

FILE = TensorFile("translator", "regard-translator")
STATE_FILE = TensorFile("training", "regard-training")  #: the state of an unfinished training


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A translator: training configuration, vocabularies, model; `extra` is any JSON."""

    config: Config
    source: Vocabulary
    target: Vocabulary
    model: TranslationModel
    extra: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | Path, checkpoint: Checkpoint, *, dtype: torch.dtype | None = None
) -> None:
    """Write a translator atomically.

    Args:
        path: the file, usually named `*.safetensors`.
        checkpoint: the translator.
        dtype: precision of stored weights, such as `torch.float16`; loading gives float32.
    """
    header, tensors = packed(
        checkpoint.config, checkpoint.source, checkpoint.target, checkpoint.model.state_dict()
    )
    if dtype is not None:
        tensors = {
            name: tensor.to(dtype) if _is_weight(name, tensor) else tensor
            for name, tensor in tensors.items()
        }
    FILE.write(Path(path), tensors, {**header, "extra": checkpoint.extra})


def load_checkpoint(path: str | Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a translator; its model is in eval mode.

    Weights stored in half precision are loaded as float32. `"english-french"` and
    `"french-english"` are the translators that ship with the package, unless a file has that name.
    """
    if is_shipped(path):
        with shipped_file(str(path)) as file:
            return load_checkpoint(file, device)
    if not os.path.lexists(path) and (near := get_close_matches(str(path), SHIPPED, 1)):
        raise RegardError(f"there is no file {path}; did you mean {near[0]}, which ships?")
    path = Path(path)
    header, tensors = _read(path)
    config, source, target, weights = unpacked(path, header, tensors)
    model = build_model(config.model, len(source), len(target))
    load_weights(path, model, weights)
    extra = header.get("extra", {})
    return Checkpoint(config, source, target, model.to(device).eval(), extra)


def add_extra(path: Path, entries: Mapping[str, Any]) -> None:
    """Store entries in the `extra` of a checkpoint; the rest of the file is unchanged."""
    header, tensors = FILE.read(path)
    FILE.write(path, tensors, {**header, "extra": {**header.get("extra", {}), **entries}})


def packed(
    config: Config, source: Vocabulary, target: Vocabulary, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file; shared weights and vocabularies are stored once."""
    stored, shared = _without_aliases(weights)
    joint = source is target
    header = {
        "config": config.table(),
        "source": source.header(),
        "target": None if joint else target.header(),
        "shared": shared,
    }
    sides = {"source": source} if joint else {"source": source, "target": target}
    tensors = {f"model.{name}": tensor for name, tensor in stored.items()}
    for side, vocabulary in sides.items():
        tensors |= {f"{side}.{name}": tensor for name, tensor in vocabulary.tensors().items()}
    return header, tensors


def unpacked(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[Config, Vocabulary, Vocabulary, dict[str, Tensor]]:
    """The inverse of `packed`; half-precision weights become float32."""
    try:
        config = Config.from_table(header["config"])
        source = vocabulary_from(header["source"], under("source.", tensors))
        target = source
        if header["target"] is not None:
            target = vocabulary_from(header["target"], under("target.", tensors))
        weights = {name: _widened(value) for name, value in under("model.", tensors).items()}
        weights |= {alias: weights[name] for alias, name in header["shared"].items()}
    except (KeyError, TypeError, AttributeError, RegardError) as error:
        raise RegardError(f"{path}: its header is not that of a translator: {error}") from error
    return config, source, target, weights


def load_weights(path: Path, model: TranslationModel, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a model; errors name the file."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RegardError(f"{path}: its weights do not fit its configuration: {error}") from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors; for a run folder or a training state, the error names the translator."""
    if os.path.isdir(path):  # False, and not an error, where nobody may look
        raise RegardError(f"{path} is a folder, expected the file of a translator{_best_in(path)}")
    try:
        return FILE.read(path)
    except OtherFormatError as error:
        if error.format != STATE_FILE.format:
            raise
        raise RegardError(
            f"{path} is the saved state of a training, not a translator{_best_in(path.parent)}"
        ) from error


def _best_in(folder: Path) -> str:
    best = folder / "best.safetensors"
    return f"; there is one in {best}" if best.exists() else ""


def _without_aliases(
    weights: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and the aliases of shared ones."""
    stored: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in weights.items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() and memory in first:
            shared[name] = first[memory]
        else:
            first[memory] = name
            stored[name] = tensor
    return stored, shared


def _is_weight(name: str, tensor: Tensor) -> bool:
    return name.startswith("model.") and tensor.is_floating_point()


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
