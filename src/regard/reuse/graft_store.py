"""Grafted parts on disk: their tensors in safetensors, what they belong to in its header."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError
from regard.record.tensor_file import TensorFile, library
from regard.reuse.graft_part import Part
from regard.reuse.graft_sites import NAMESPACE, inside

_FILE = TensorFile("graft", "regard-graft-1")


def save(path: Path, model: nn.Module, name: str, part: Part) -> Path:
    """Write a part, whole or not at all."""
    if path.suffix != ".safetensors":
        raise RegardError(f"a graft is saved as .safetensors, got {path.name!r}")
    header = {"name": name, "part": _described(part), "base": _base(model)}
    prefix = f"{NAMESPACE}.{name}."
    tensors = {prefix + key: tensor for key, tensor in part.state_dict().items()}
    _FILE.write(path, tensors, header)
    return path


def load(path: Path, model: nn.Module, part: Part) -> None:
    """Read a part that was saved from the same base model and sites."""
    header, tensors = _FILE.read(path)
    try:
        name, described, base = header["name"], header["part"], header["base"]
        prefix = f"{NAMESPACE}.{name}."
    except (KeyError, TypeError) as error:
        raise RegardError(f"{path}: its header is not that of a graft: {error!r}") from error
    _check_part(path, described, _described(part))
    _check_base(path, base, _base(model))
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    _check_tensors(path, found, part.state_dict())
    part.load_state_dict(found)


def _described(part: Part) -> dict[str, Any]:
    return {
        "class": type(part).__name__,
        "reads": part.reads,
        "into": part.into,
        "mask": part.mask,
    }


def _base(model: nn.Module) -> dict[str, Any]:
    """The class of a model, and a digest of each of its own tensors."""
    store = library()
    digests = {
        key: hashlib.sha256(store.torch.save({"": tensor.detach().contiguous()})).hexdigest()[:16]
        for key, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and not inside(key)
    }
    return {"class": type(model).__name__, "tensors": digests}


def _check_part(path: Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    for field, expected in theirs.items():
        if mine.get(field) != expected:
            raise RegardError(
                f"{path} was saved with {field}={expected!r}, but this graft has "
                f"{field}={mine.get(field)!r}"
            )


def _check_base(path: Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    if theirs["class"] != mine["class"]:
        raise RegardError(
            f"{path} was saved from a {theirs['class']}, but this model is a {mine['class']}"
        )
    before, now = theirs["tensors"], mine["tensors"]
    missing, more = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    if missing or more:
        what = f"has no {missing[0]!r}" if missing else f"also has {more[0]!r}"
        raise RegardError(f"{path} was saved from another base model: this one {what}")
    other = [key for key in before if before[key] != now[key]]
    if other:
        raise RegardError(
            f"{path} was saved from another base model: {len(other)} of {len(before)} tensors "
            f"differ here, the first is {other[0]!r}. If the base was trained with the graft, load "
            "its own weights first, in the dtype it had"
        )


def _check_tensors(path: Path, found: dict[str, Tensor], mine: dict[str, Tensor]) -> None:
    if found.keys() != mine.keys():
        odd = sorted(found.keys() ^ mine.keys())
        raise RegardError(f"{path} and this part do not hold the same tensors: {', '.join(odd)}")
    for key, tensor in found.items():
        if tensor.shape != mine[key].shape:
            raise RegardError(
                f"{path}: {key} is {tuple(tensor.shape)}, expected {tuple(mine[key].shape)}"
            )
