"""Grafted parts on disk: their tensors in safetensors, what they belong to in its header."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError
from regard.recipe.base import tensors
from regard.record.tensor_file import TensorFile, library
from regard.reuse.graft_part import Part
from regard.reuse.graft_sites import NAMESPACE, inside

#: Attributes of a part that are told elsewhere, or are no setting.
_ELSEWHERE = ("training", "reads", "into", "mask", "dropout")
_FILE = TensorFile("graft", "regard-graft-1")


def save(path: Path, model: nn.Module, name: str, part: Part) -> Path:
    """Write a part, whole or not at all."""
    if path.suffix != ".safetensors":
        raise RegardError(f"a graft is saved as .safetensors, got {path.name!r}")
    described = {**_described(part), "settings": _settings(part)}
    header = {"name": name, "part": described, "base": _base(model)}
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
    settings = described.pop("settings", {})
    _check_part(path, described, _described(part))
    _check_base(path, base, _base(model), {name for name, _ in model.named_buffers()})
    found = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    _check_tensors(path, found, part.state_dict())
    _check_settings(path, settings, _settings(part))
    part.load_state_dict(found)


def _described(part: Part) -> dict[str, Any]:
    return {
        "class": type(part).__name__,
        "reads": part.reads,
        "into": part.into,
        "mask": part.mask,
    }


def _settings(part: Part) -> dict[str, str]:
    """Of each module in a part what its tensors do not tell: heads, causality, a gate's kind.

    Of our own modules all they hold; of others what they show of themselves.
    """
    found = {}
    for path, module in part.named_modules():
        prefix = f"{path}." if path else ""
        found[f"{prefix}class"] = type(module).__name__
        if type(module).__module__.partition(".")[0] != "regard":
            found[f"{prefix}settings"] = module.extra_repr()
            continue
        fixed = {name: module.get_buffer(name) for name in module._non_persistent_buffers_set}
        for name, value in {**vars(module), **fixed}.items():
            if not name.startswith("_") and name not in _ELSEWHERE:
                found[f"{prefix}{name}"] = _shown(value)
    return found


def _shown(value: Any) -> str:
    """A value in words; tensors and what holds them by a digest, since words leave numbers out."""
    held = tensors(value)
    if not held:
        words = repr(value)
        return getattr(value, "__qualname__", type(value).__name__) if " at 0x" in words else words
    store = library()
    each = {str(number): one.detach().contiguous() for number, one in enumerate(held)}
    return f"{type(value).__name__} {hashlib.sha256(store.torch.save(each)).hexdigest()[:16]}"


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


def _check_settings(path: Path, theirs: dict[str, str], mine: dict[str, str]) -> None:
    for name in {**theirs, **mine} if theirs else {}:
        if theirs.get(name) != mine.get(name):
            raise RegardError(
                f"{path} was saved with {name}={theirs.get(name, 'nothing')}, but this graft has "
                f"{name}={mine.get(name, 'nothing')}: it would be another function"
            )


def _check_base(
    path: Path, theirs: dict[str, Any], mine: dict[str, Any], buffers: set[str]
) -> None:
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
        moved = [key for key in other if key in buffers]
        also = (
            f" {len(moved)} of them are buffers, as {moved[0]!r}, which move in train mode though "
            "parameters are frozen."
            if moved
            else ""
        )
        raise RegardError(
            f"{path} was saved from another base model: {len(other)} of {len(before)} tensors "
            f"differ here, the first is {other[0]!r}.{also} If the base was trained with the "
            "graft, load its own weights first, in the dtype it had"
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
