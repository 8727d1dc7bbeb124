"""Traces on disk: tensors in safetensors, everything else in its JSON header.

Loading builds only the recipe and mask classes listed here, from plain numbers and tensors:
it runs no code. Flex attention's functions cannot be written, so its weights are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from regard.bias import Bias
from regard.errors import RegardError
from regard.kernel.reducers.rows import KeyCounts, TopKeys
from regard.masks.parts import Band, Both, Either, Mask, Opposite, Padding, Pairs, Segments
from regard.recipe import (
    Additive,
    Delta,
    Dot,
    Edges,
    Entmax,
    Flex,
    Given,
    Identity,
    Linear,
    Mixture,
    Normaliser,
    Pointing,
    Projected,
    Recipe,
    Recurrent,
    Sigmoid,
    Softmax,
    Softmaxed,
    Sparsemax,
    Uniform,
    Unrolled,
)
from regard.record.record import HeldAs, Record
from regard.record.site import Note, OtherSoftmax, Site
from regard.record.stored_attention import StoredRecipe
from regard.record.tensor_file import TensorFile
from regard.record.trace import Trace
from regard.types import Kind, Shape

_FILE = TensorFile("trace", "regard-trace-1")
_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(Dot, Additive, Pointing, Given, Unrolled, Projected, Edges, Mixture, Identity, Uniform),
        *(Linear, Delta),
        *(Softmax, Sigmoid, Sparsemax, Entmax),
        *(Padding, Band, Pairs, Segments, Both, Either, Opposite),
    )
}

_TENSORS = {
    "query",
    "key",
    "value",
    "matrix",
    "vector",
    "sink",
    "lse",
    "input",
    "key_input",
    "weight",
    "query_index",
    "key_index",
    "edge_weights",
    "row_starts",
    "strength",
    "log_decay",
    "memory",
    "normaliser",
}
_ANSWERS: dict[str, type[Any]] = {cls.__name__: cls for cls in (TopKeys, KeyCounts)}


def save(trace: Trace, path: Path) -> Path:
    """Write a trace to a safetensors file, whole or not at all."""
    if path.suffix != ".safetensors":
        raise RegardError(f"{path.name!r}: a trace is saved as .safetensors, and its page as .html")
    tensors: dict[str, Tensor] = {}
    names = _Names(tensors)
    if path.is_dir():
        raise RegardError(f"{path} is a folder, expected the name of a file to write")
    header = {
        "records": [_record(record, names.of(str(i))) for i, record in enumerate(trace)],
        "notes": [asdict(note) for note in trace.notes],
        "other_softmaxes": [asdict(other) for other in trace.other_softmaxes],
    }
    _FILE.write(path, tensors, header)
    return path


def load_trace(path: str | Path) -> Trace:
    """Read a trace that `trace.save` or `keep=folder` wrote. Runs no code.

    Args:
        path: a `.safetensors` file, or the folder of a capture that kept to disk.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    header, tensors = _FILE.read(path)
    try:
        records = [_read_record(entry, tensors) for entry in header["records"]]
        return Trace(records, **_said(header))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RegardError(f"{path}: not a trace of regard: {error!r}") from error


def _load_folder(folder: Path) -> Trace:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RegardError(f"{folder} holds no records")
    said = folder / "said.json"
    rest = _said(json.loads(said.read_text())) if said.exists() else {}
    return Trace([record for file in files for record in load_trace(file)], **rest)


def _said(header: dict[str, Any]) -> dict[str, Any]:
    """Notes, and softmaxes that were not taken for attention."""
    entries = ({**other, "shape": tuple(other["shape"])} for other in header["other_softmaxes"])
    return {
        "notes": [Note(**note) for note in header["notes"]],
        "other_softmaxes": [OtherSoftmax(**entry) for entry in entries],
    }


def load_recipe(path: Path) -> Recipe:
    """The recipe of the one record in a file."""
    return load_trace(path)[0].recipe


def storable(recipe: Recipe) -> Recipe:
    """The recipe as it can be written: detached, functions and structured biases as weights."""
    if isinstance(recipe, Mixture):
        return recipe.each(storable).detach()
    bias = getattr(recipe, "bias", None)
    if isinstance(recipe, Flex) or isinstance(bias, Bias):
        return Given(recipe.weights().detach(), recipe.value, recipe.kind).detach()
    return recipe.detach()


class _Names:
    """Gives each tensor a name in the file; a tensor that records share is written once."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._known: dict[Any, str] = {}

    def of(self, prefix: str) -> Callable[[str, Tensor], str]:
        """A function that names the tensors of one record."""

        def name(field: str, tensor: Tensor) -> str:
            same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            found = self._known.get(same) if tensor.numel() else None
            if found is None:
                found = self._known[same] = f"{prefix}.{field}"
                self.tensors[found] = tensor
            return found

        return name


def _record(record: Record, name: Callable[[str, Tensor], str]) -> dict[str, Any]:
    held = record.held in ("recipe", "weights", "disk")
    return {
        "site": _site(record.site),
        "shape": list(record.shape),
        "kind": record.kind,
        "dtype": str(record.dtype).removeprefix("torch."),
        "held": "recipe" if record.held == "disk" else record.held,
        "recipe": _encode(storable(record.recipe), name) if held else None,
        "reductions": _encode_result(record.reductions, name, "reductions"),
        "output": None
        if record.output is None
        else {"tensor": name("output", record.output.detach())},
        "query_tokens": record.query_tokens,
        "key_tokens": record.key_tokens,
    }


def _site(site: Site) -> dict[str, Any]:
    """A site as JSON. That axes are known goes without saying, as in files of before."""
    entry = asdict(site)
    if site.axes_known:
        del entry["axes_known"]
    return entry


def _read_record(entry: dict[str, Any], tensors: dict[str, Tensor]) -> Record:
    recipe = None if entry["recipe"] is None else _decode(entry["recipe"], tensors, Recipe)
    shape, dtype = Shape(*entry["shape"]), getattr(torch, str(entry["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {entry['dtype']!r}")
    if entry["kind"] not in get_args(Kind) or entry["held"] not in get_args(HeldAs):
        raise ValueError(f"kind {entry['kind']!r}, held {entry['held']!r}")
    if recipe is not None and recipe.shape != shape:
        raise ValueError(f"shape {shape}, but the recipe has {recipe.shape}")
    return Record(
        Site(**entry["site"]),
        None if recipe is None else StoredRecipe(recipe),
        shape=shape,
        kind=entry["kind"],
        dtype=dtype,
        held_as=entry["held"],
        reductions=_decode_result(entry["reductions"], tensors),
        output=_decode(entry["output"], tensors, Tensor),
        query_tokens=entry["query_tokens"],
        key_tokens=entry["key_tokens"],
    )


def _encode(part: Any, name: Callable[[str, Tensor], str], field: str = "") -> Any:
    if isinstance(part, Tensor):
        return {"tensor": name(field, part)}
    if isinstance(part, Recipe | Mask | Normaliser):
        if type(part).__name__ not in _CLASSES:
            raise RegardError(f"{type(part).__name__} cannot be saved")
        inner = {
            f.name: _encode(getattr(part, f.name), name, f"{field}.{f.name}".strip("."))
            for f in fields(part)  # type: ignore[arg-type]
            if not isinstance(getattr(part, f.name), Softmax)  # the default, as in files of before
        }
        return {"class": type(part).__name__, "fields": inner}
    if isinstance(part, tuple):
        return [_encode(inner, name, f"{field}.{i}") for i, inner in enumerate(part)]
    return part


def _decode(part: Any, tensors: dict[str, Tensor], kind: type[Any] | None = None) -> Any:
    """A number, a tensor, a mask or a recipe; `kind` is what must be there."""
    found = part
    if isinstance(part, list):
        return tuple(_decode(inner, tensors, kind) for inner in part)
    if isinstance(part, dict) and "tensor" in part:
        found = tensors[part["tensor"]]
    elif isinstance(part, dict):
        cls = _CLASSES.get(str(part.get("class")))
        if cls is None:
            raise ValueError(f"it names a class {part.get('class')!r}")
        inner = part["fields"]
        made = {name: _decode(value, tensors) for name, value in inner.items()}
        normaliser = made.get("normaliser") if issubclass(cls, Softmaxed) else None
        if normaliser is not None and not isinstance(normaliser, Normaliser):
            raise ValueError(f"normaliser is {normaliser!r}")
        for name in _TENSORS & made.keys() - ({"normaliser"} if normaliser is not None else set()):
            if made[name] is not None and not isinstance(made[name], Tensor):
                raise ValueError(f"{name} is {made[name]!r}, expected a tensor")
        if made.get("mask") is not None and not isinstance(made["mask"], Mask):
            raise ValueError(f"mask is {type(made['mask']).__name__}")
        found = cls(**made)
        if isinstance(found, Edges | Mixture | Recurrent):
            found.check()
    if kind is not None and found is not None and not isinstance(found, kind):
        raise ValueError(f"{type(found).__name__} where {kind.__name__} belongs")
    return found


def _encode_result(result: Any, name: Callable[[str, Tensor], str], field: str) -> Any:
    if isinstance(result, Tensor):
        return {"tensor": name(field, result)}
    if isinstance(result, tuple | list):
        parts = [_encode_result(part, name, f"{field}.{i}") for i, part in enumerate(result)]
        return {"named": type(result).__name__, "parts": parts} if _named(result) else parts
    return result


def _named(result: Any) -> bool:
    return type(result) in _ANSWERS.values()


def _decode_result(result: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(result, dict):
        if "named" in result:
            parts = [_decode_result(part, tensors) for part in result["parts"]]
            return _ANSWERS[result["named"]](*parts)
        return tensors[result["tensor"]]
    if isinstance(result, list):
        return tuple(_decode_result(part, tensors) for part in result)
    return result
