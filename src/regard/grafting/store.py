"""Grafted parts on disk: their tensors in safetensors, sites and base model in its header."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.errors import RegardError
from regard.grafting.parts import Part
from regard.grafting.sites import NAMESPACE, in_graft
from regard.recipe.base import tensors
from regard.record.tensor_file import TensorFile, library

#: Attributes of a part that the header has elsewhere, or that change no function.
_NOT_SETTINGS = ("training", "reads", "into", "mask", "dropout")
_FILE = TensorFile("graft", "regard-graft-1")


def save(path: Path, model: nn.Module, name: str, part: Part) -> Path:
    """Write a part, whole or not at all."""
    if path.suffix != ".safetensors":
        raise RegardError(f"a graft is saved as .safetensors, got {path.name!r}")
    description = {**_description(part), "settings": _settings(part)}
    header = {"name": name, "part": description, "base": _base(model)}
    prefix = f"{NAMESPACE}.{name}."
    _FILE.write(path, {prefix + key: value for key, value in part.state_dict().items()}, header)
    return path


def load(path: Path, model: nn.Module, part: Part) -> None:
    """Read a part that was saved from the same base model and sites."""
    header, stored = _FILE.read(path)
    try:
        name, description, base = header["name"], header["part"], header["base"]
        prefix = f"{NAMESPACE}.{name}."
    except (KeyError, TypeError) as error:
        raise RegardError(f"{path}: its header is not that of a graft: {error!r}") from error
    settings = description.pop("settings", {})
    _check_description(path, description, _description(part))
    _check_base(path, base, _base(model), {name for name, _ in model.named_buffers()})
    state = {key.removeprefix(prefix): tensor for key, tensor in stored.items()}
    _check_tensors(path, state, part.state_dict())
    _check_settings(path, settings, _settings(part))
    part.load_state_dict(state)


def _description(part: Part) -> dict[str, Any]:
    return {
        "class": type(part).__name__,
        "reads": part.reads,
        "into": part.into,
        "mask": part.mask,
    }


def _settings(part: Part) -> dict[str, str]:
    """The settings of each module in a part that its tensors do not show, as heads or causality.

    Of regard's modules every attribute; of others their `extra_repr`.
    """
    settings = {}
    for path, module in part.named_modules():
        prefix = f"{path}." if path else ""
        settings[f"{prefix}class"] = type(module).__name__
        if type(module).__module__.partition(".")[0] != "regard":
            settings[f"{prefix}settings"] = module.extra_repr()
            continue
        buffers = {name: module.get_buffer(name) for name in module._non_persistent_buffers_set}
        for name, value in {**vars(module), **buffers}.items():
            if not name.startswith("_") and name not in _NOT_SETTINGS:
                settings[f"{prefix}{name}"] = _text(value)
    return settings


def _text(value: Any) -> str:
    """A setting as text; tensors by a digest, since their repr leaves numbers out."""
    held = tensors(value)
    if not held:
        text = repr(value)
        return getattr(value, "__qualname__", type(value).__name__) if " at 0x" in text else text
    return f"{type(value).__name__} {_digest(dict(zip(map(str, range(len(held))), held)))}"


def _digest(named: dict[str, Tensor]) -> str:
    contents = {name: tensor.detach().contiguous() for name, tensor in named.items()}
    return hashlib.sha256(library().torch.save(contents)).hexdigest()[:16]


def _base(model: nn.Module) -> dict[str, Any]:
    """The class of a model, and a digest of each of its own tensors."""
    digests = {
        key: _digest({"": tensor})
        for key, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and not in_graft(key)
    }
    return {"class": type(model).__name__, "tensors": digests}


def _check_description(path: Path, stored: dict[str, Any], own: dict[str, Any]) -> None:
    for field, value in stored.items():
        if own.get(field) != value:
            raise RegardError(
                f"{path} was saved with {field}={value!r}, but this graft has "
                f"{field}={own.get(field)!r}"
            )


def _check_settings(path: Path, stored: dict[str, str], own: dict[str, str]) -> None:
    for name in {**stored, **own} if stored else {}:
        if stored.get(name) != own.get(name):
            raise RegardError(
                f"{path} was saved with {name}={stored.get(name, 'nothing')}, but this graft has "
                f"{name}={own.get(name, 'nothing')}: it would be another function"
            )


def _check_base(path: Path, stored: dict[str, Any], own: dict[str, Any], buffers: set[str]) -> None:
    if stored["class"] != own["class"]:
        raise RegardError(
            f"{path} was saved from a {stored['class']}, but this model is a {own['class']}"
        )
    before, now = stored["tensors"], own["tensors"]
    missing, extra = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    if missing or extra:
        difference = f"has no {missing[0]!r}" if missing else f"also has {extra[0]!r}"
        raise RegardError(f"{path} was saved from another base model: this one {difference}")
    changed = [key for key in before if before[key] != now[key]]
    if changed:
        moved = [key for key in changed if key in buffers]
        hint = (
            f" {len(moved)} of them are buffers, as {moved[0]!r}, which move in train mode though "
            "parameters are frozen."
            if moved
            else ""
        )
        raise RegardError(
            f"{path} was saved from another base model: {len(changed)} of {len(before)} tensors "
            f"differ here, the first is {changed[0]!r}.{hint} If the base was trained with the "
            "graft, load its own weights first, in the dtype it had"
        )


def _check_tensors(path: Path, stored: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    if stored.keys() != own.keys():
        odd = sorted(stored.keys() ^ own.keys())
        raise RegardError(f"{path} and this part do not hold the same tensors: {', '.join(odd)}")
    for key, tensor in stored.items():
        if tensor.shape != own[key].shape:
            raise RegardError(
                f"{path}: {key} is {tuple(tensor.shape)}, expected {tuple(own[key].shape)}"
            )
