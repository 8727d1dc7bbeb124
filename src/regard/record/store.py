"""Traces on disk: tensors in safetensors, everything else in its JSON header.

Loading builds only the recipe and mask classes listed here, from numbers and tensors: it runs no
code. Flex attention's functions cannot be saved, so its weights are.
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
    "query", "key", "value", "matrix", "vector", "sink", "lse", "input", "key_input", "weight",
    "query_index", "key_index", "edge_weights", "row_starts", "strength", "log_decay", "memory",
    "normaliser",
}  # fmt: skip
_ANSWERS: dict[str, type[Any]] = {cls.__name__: cls for cls in (TopKeys, KeyCounts)}


def save(trace: Trace, path: Path) -> Path:
    """Save a trace to a safetensors file, atomically."""
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
    """Load a trace that `trace.save` or `keep=folder` wrote. Runs no code.

    Args:
        path: a `.safetensors` file, or the folder of a capture with `keep=folder`.
    """
    path = Path(path)
    if path.is_dir():
        return _load_folder(path)
    header, tensors = _FILE.read(path)
    try:
        records = [_read_record(entry, tensors) for entry in header["records"]]
        return Trace(records, **_notes(header))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RegardError(f"{path}: not a trace of regard: {error!r}") from error


def _load_folder(folder: Path) -> Trace:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RegardError(f"{folder} holds no records")
    notes_file = folder / "said.json"
    notes = _notes(json.loads(notes_file.read_text())) if notes_file.exists() else {}
    return Trace([record for file in files for record in load_trace(file)], **notes)


def _notes(header: dict[str, Any]) -> dict[str, Any]:
    """The notes and other softmaxes of a header."""
    entries = ({**other, "shape": tuple(other["shape"])} for other in header["other_softmaxes"])
    return {
        "notes": [Note(**note) for note in header["notes"]],
        "other_softmaxes": [OtherSoftmax(**entry) for entry in entries],
    }


def load_recipe(path: Path) -> Recipe:
    """The recipe of the one record in a file."""
    return load_trace(path)[0].recipe


def storable(recipe: Recipe) -> Recipe:
    """The recipe as it can be saved: detached, functions and structured biases as weights."""
    if isinstance(recipe, Mixture):
        return recipe.each(storable).detach()
    bias = getattr(recipe, "bias", None)
    if isinstance(recipe, Flex) or isinstance(bias, Bias):
        return Given(recipe.weights().detach(), recipe.value, recipe.kind).detach()
    return recipe.detach()


class _Names:
    """Names tensors in the file; a tensor that records share is saved once."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self._names: dict[Any, str] = {}

    def of(self, prefix: str) -> Callable[[str, Tensor], str]:
        """A function that names the tensors of one record."""

        def name(field: str, tensor: Tensor) -> str:
            same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            existing = self._names.get(same) if tensor.numel() else None
            if existing is not None:
                return existing
            self._names[same] = f"{prefix}.{field}"
            self.tensors[self._names[same]] = tensor
            return self._names[same]

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
    """A site as JSON; known axes are omitted, as in older files."""
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


def _encode(item: Any, name: Callable[[str, Tensor], str], field: str = "") -> Any:
    if isinstance(item, Tensor):
        return {"tensor": name(field, item)}
    if isinstance(item, Recipe | Mask | Normaliser):
        if type(item).__name__ not in _CLASSES:
            raise RegardError(f"{type(item).__name__} cannot be saved")
        inner = {
            f.name: _encode(getattr(item, f.name), name, f"{field}.{f.name}".strip("."))
            for f in fields(item)  # type: ignore[arg-type]
            if not isinstance(
                getattr(item, f.name), Softmax
            )  # the default, omitted as in older files
        }
        return {"class": type(item).__name__, "fields": inner}
    if isinstance(item, tuple):
        return [_encode(inner, name, f"{field}.{i}") for i, inner in enumerate(item)]
    return item


def _decode(item: Any, tensors: dict[str, Tensor], kind: type[Any] | None = None) -> Any:
    """A number, a tensor, a mask or a recipe, which must be of type `kind`."""
    decoded = item
    if isinstance(item, list):
        return tuple(_decode(inner, tensors, kind) for inner in item)
    if isinstance(item, dict) and "tensor" in item:
        decoded = tensors[item["tensor"]]
    elif isinstance(item, dict):
        cls = _CLASSES.get(str(item.get("class")))
        if cls is None:
            raise ValueError(f"it names a class {item.get('class')!r}")
        inner = item["fields"]
        arguments = {name: _decode(value, tensors) for name, value in inner.items()}
        normaliser = arguments.get("normaliser") if issubclass(cls, Softmaxed) else None
        if normaliser is not None and not isinstance(normaliser, Normaliser):
            raise ValueError(f"normaliser is {normaliser!r}")
        for name in _TENSORS & arguments.keys() - (
            {"normaliser"} if normaliser is not None else set()
        ):
            if arguments[name] is not None and not isinstance(arguments[name], Tensor):
                raise ValueError(f"{name} is {arguments[name]!r}, expected a tensor")
        if arguments.get("mask") is not None and not isinstance(arguments["mask"], Mask):
            raise ValueError(f"mask is {type(arguments['mask']).__name__}")
        decoded = cls(**arguments)
        if isinstance(decoded, Edges | Mixture | Recurrent):
            decoded.check()
    if kind is not None and decoded is not None and not isinstance(decoded, kind):
        raise ValueError(f"{type(decoded).__name__} where {kind.__name__} belongs")
    return decoded


def _encode_result(result: Any, name: Callable[[str, Tensor], str], field: str) -> Any:
    if isinstance(result, Tensor):
        return {"tensor": name(field, result)}
    if isinstance(result, tuple | list):
        items = [_encode_result(item, name, f"{field}.{i}") for i, item in enumerate(result)]
        return {"named": type(result).__name__, "parts": items} if _named(result) else items
    return result


def _named(result: Any) -> bool:
    return type(result) in _ANSWERS.values()


def _decode_result(result: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(result, dict):
        if "named" in result:
            items = [_decode_result(item, tensors) for item in result["parts"]]
            return _ANSWERS[result["named"]](*items)
        return tensors[result["tensor"]]
    if isinstance(result, list):
        return tuple(_decode_result(item, tensors) for item in result)
    return result
