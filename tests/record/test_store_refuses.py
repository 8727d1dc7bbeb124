"""Files that are not ours, or half ours: refused by name, and loading runs no code."""

import json
import os

import pytest
import torch
from record_examples import record, three_layers_twice, words
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard import masks
from regard.errors import RegardError
from regard.recipe import Dot, Flex
from regard.record import Trace
from regard.record import store as storing

# -- a crash


@pytest.mark.parametrize("stage", ["write", "replace"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "over another"])
def test_a_crash_leaves_nothing_half_written(stage, there, tmp_path, monkeypatch):
    file = tmp_path / "a.safetensors"
    if there:
        Trace([record("before")]).save(file)

    def writes_half(tensors, name, metadata=None):
        with open(name, "wb") as half:
            half.write(b"half")
        raise OSError("disk full")

    def refuses(self, target):
        raise OSError("disk full")

    if stage == "write":
        monkeypatch.setattr("safetensors.torch.save_file", writes_half)
    else:
        monkeypatch.setattr("pathlib.Path.replace", refuses)
    with pytest.raises(RegardError, match=r"a\.safetensors cannot be written: disk full"):
        three_layers_twice().save(file)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == (["a.safetensors"] if there else [])
    if there:
        assert regard.load_trace(file).names() == ["before"]


def test_a_crash_while_weights_are_made(tmp_path):
    """Flex attention's function fails: no file appears."""

    def fails(*places):
        raise RuntimeError("no weights today")

    recipe = Flex(
        words(1, 1, 2, 4), words(1, 1, 3, 4), torch.arange(1), torch.arange(1), score_mod=fails
    )
    with pytest.raises(RuntimeError, match="no weights today"):
        Trace([record("a"), record("b", recipe)]).save(tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


# -- files that are not ours


def test_wrong_suffix(tmp_path):
    for name in ("trace", "trace.pt", "trace.safetensors.gz"):
        with pytest.raises(RegardError, match=rf"'{name}': a trace is saved as"):
            three_layers_twice().save(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_no_such_file(tmp_path):
    with pytest.raises(RegardError, match=r"no file .*nowhere\.safetensors"):
        regard.load_trace(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"not a trace", b"\xff" * 100], ids=["empty", "text", "noise"]
)
def test_not_a_safetensors_file(content, tmp_path):
    file = tmp_path / "a.safetensors"
    file.write_bytes(content)
    with pytest.raises(RegardError, match="is not a safetensors file"):
        regard.load_trace(file)


def test_a_safetensors_file_of_somebody_else(tmp_path):
    file = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(2)}, file, metadata=metadata)
        with pytest.raises(RegardError, match="not a trace of regard"):
            regard.load_trace(file)


def test_a_truncated_file(tmp_path):
    file = three_layers_twice().save(tmp_path / "a.safetensors")
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(RegardError, match="is not a safetensors file"):
        regard.load_trace(file)


class Ran(Exception):
    """Loading ran code."""


def explode(*args, **kwargs):
    raise Ran


def forged(folder, change):
    """A saved trace whose header somebody changed."""
    file = Trace(
        [record("a", Dot(words(1, 1, 2, 4), words(1, 1, 3, 4), mask=masks.causal()))]
    ).save(folder / "a.safetensors")
    with safe_open(str(file), framework="pt") as opened:
        metadata = opened.metadata()
    header = json.loads(metadata["trace"])
    header = change(header) or header
    metadata["trace"] = header if isinstance(header, str) else json.dumps(header)
    save_file(load_file(file), file, metadata=metadata)
    return file


def _set(*path):
    *where, value = path

    def change(header):
        part = header
        for step in where[:-1]:
            part = part[step]
        part[where[-1]] = value

    return change


def _without(*where):
    def change(header):
        part = header
        for step in where[:-1]:
            part = part[step]
        del part[where[-1]]

    return change


FIELDS = ("records", 0, "recipe", "fields")
HOSTILE = {
    "unknown recipe": _set("records", 0, "recipe", "class", "os.system"),
    "a class of Python": _set("records", 0, "recipe", "class", "eval"),
    "a class of ours that is not a recipe": _set("records", 0, "recipe", "class", "Record"),
    "flex, which holds functions": _set("records", 0, "recipe", "class", "Flex"),
    "no class": _set("records", 0, "recipe", {"fields": {}}),
    "a class that is no name": _set("records", 0, "recipe", "class", ["Dot"]),
    "unknown mask": _set(*FIELDS, "mask", {"class": "__import__", "fields": {}}),
    "a mask for a recipe": _set("records", 0, "recipe", {"class": "Band", "fields": {}}),
    "a recipe for a mask": _set(*FIELDS, "mask", {"class": "Dot", "fields": {}}),
    "unknown field": _set(*FIELDS, "__class__", 1),
    "a field is missing": _without(*FIELDS, "query"),
    "no such tensor": _set(*FIELDS, "query", "tensor", "nope"),
    "a tensor that is none": _set(*FIELDS, "query", 7),
    "dtype that is a function": _set("records", 0, "dtype", "load"),
    "dtype that does not exist": _set("records", 0, "dtype", "nope"),
    "dtype by a path": _set("records", 0, "dtype", "__builtins__"),
    "unknown part of a site": _set("records", 0, "site", "evil", 1),
    "kind": _set("records", 0, "kind", "evil"),
    "held": _set("records", 0, "held", "evil"),
    "shape": _set("records", 0, "shape", [1, 2]),
    "notes": _set("notes", [{"evil": 1}]),
    "no records": _without("records"),
    "records that are none": _set("records", 3),
    "not JSON": lambda header: "{",
    "a list": lambda header: "[]",
}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_header_is_refused(change, tmp_path, monkeypatch):
    file = forged(tmp_path, change)
    monkeypatch.setattr("pickle.loads", explode)
    monkeypatch.setattr("pickle.load", explode)
    monkeypatch.setattr("torch.load", explode)
    monkeypatch.setattr("os.system", explode)
    monkeypatch.setattr("builtins.eval", explode)
    monkeypatch.setattr("builtins.exec", explode)
    with pytest.raises(RegardError, match=r"a\.safetensors"):
        regard.load_trace(file)


def test_an_unchanged_header_is_taken(tmp_path):
    assert len(regard.load_trace(forged(tmp_path, lambda header: None))) == 1


def test_no_class_comes_from_the_file():
    """The list of what loading may build is closed, and none of it holds functions."""
    assert set(storing._CLASSES) == {
        *("Dot", "Additive", "Given", "Projected", "Edges", "Mixture", "Identity", "Uniform"),
        *("Linear", "Delta", "Pointing", "Unrolled"),
        *("Softmax", "Sigmoid", "Sparsemax", "Entmax"),
        *("Padding", "Band", "Pairs", "Segments", "Both", "Either", "Opposite"),
    }


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(ImportError, match=r"safetensors.*regard\[store\]"):
        three_layers_twice().save(tmp_path / "a.safetensors")
