"""A translator as one file: everything comes back, shared tensors once, wrong files are named."""

import errno
import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from regard.errors import RegardError
from regard.translate.checkpoint import (
    FILE,
    STATE_FILE,
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from regard.translate.config import Config
from regard.translate.models.build import build_model, names
from regard.translate.shipped import SHIPPED
from regard.translate.vocabulary import PieceVocabulary, WordVocabulary

TEXTS = ["the cat sat on the mat", "a dog ran over the hill", "cats and dogs sat"]
SMALL = {"embedding": 8, "hidden": 8}


def made(name="bahdanau", joint=False, **settings):
    source = WordVocabulary.train(TEXTS, size=50)
    target = source if joint else WordVocabulary.train(TEXTS[:2], size=40)
    config = Config.from_table({"model": {"name": name, **SMALL, **settings}})
    model = build_model(config.model, len(source), len(target))
    return Checkpoint(config, source, target, model, {"note": "é", "valid": {"loss": 1.5}})


def logits(model):
    source = torch.tensor([[5, 6, 7, 2]])
    target = torch.tensor([[1, 5, 6]])
    model.eval()
    with torch.no_grad():
        return model(source, source > 0, target, target > 0)


@pytest.mark.parametrize("name", names())
def test_every_model_comes_back(tmp_path, name):
    checkpoint = made(name)
    save_checkpoint(tmp_path / "a.safetensors", checkpoint)
    found = load_checkpoint(tmp_path / "a.safetensors")
    assert found.config == checkpoint.config and found.extra == checkpoint.extra
    assert not found.model.training
    torch.testing.assert_close(logits(found.model), logits(checkpoint.model), rtol=0, atol=0)
    for text in (*TEXTS, "an unknown cat"):
        assert found.source.encode(text) == checkpoint.source.encode(text)
        assert found.target.encode(text) == checkpoint.target.encode(text)


def test_pieces_come_back(tmp_path):
    pieces = PieceVocabulary.train(TEXTS * 3, size=300)
    config = Config.from_table({"model": {"name": "dot", **SMALL}})
    model = build_model(config.model, len(pieces), len(pieces))
    save_checkpoint(tmp_path / "a.safetensors", Checkpoint(config, pieces, pieces, model))
    found = load_checkpoint(tmp_path / "a.safetensors")
    assert found.source is found.target
    assert found.source.encode("a dog sat") == pieces.encode("a dog sat")


def test_what_is_shared_is_stored_once_and_shared_again(tmp_path):
    save_checkpoint(tmp_path / "a.safetensors", made("transformer", joint=True, tie="all"))
    _, tensors = FILE.read(tmp_path / "a.safetensors")
    found = load_checkpoint(tmp_path / "a.safetensors")
    assert found.source is found.target
    stored = sum(tensor.numel() for name, tensor in tensors.items() if name.startswith("model."))
    assert stored == sum(parameter.numel() for parameter in found.model.parameters())


def test_half_precision_halves_the_file_and_loads_as_float32(tmp_path):
    checkpoint = made(hidden=128)
    save_checkpoint(tmp_path / "whole.safetensors", checkpoint)
    save_checkpoint(tmp_path / "half.safetensors", checkpoint, dtype=torch.float16)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.52 * sizes[1]
    found = load_checkpoint(tmp_path / "half.safetensors")
    assert all(parameter.dtype == torch.float32 for parameter in found.model.parameters())
    torch.testing.assert_close(logits(found.model), logits(checkpoint.model), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["frenchenglish", "french-englisch", "French-English"])
def test_a_misspelt_name_of_a_shipped_translator(name):
    with pytest.raises(RegardError, match=f"no file {name}; did you mean french-english, which"):
        load_checkpoint(name)


def test_files_that_are_no_translator_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(RegardError, match=r"there is no file .*a\.safetensors"):
        load_checkpoint(path)
    save_file({"a": torch.zeros(2)}, str(path))
    with pytest.raises(RegardError, match="safetensors file, but not a translator of regard"):
        load_checkpoint(path)
    path.write_bytes(b"PK\x03\x04 a pickle, perhaps")
    with pytest.raises(RegardError, match="is not a safetensors file"):
        load_checkpoint(path)
    FILE.write(path, {}, {"config": {"model": {"hiden": 3}}})
    with pytest.raises(RegardError, match=r"not that of a translator.*model\.hiden"):
        load_checkpoint(path)
    FILE.write(path, {}, {"config": {}})
    with pytest.raises(RegardError, match="not that of a translator: 'source'"):
        load_checkpoint(path)


def test_a_folder_and_a_saved_training_are_told_from_a_translator(tmp_path):
    with pytest.raises(RegardError, match=r"is a folder, expected the file of a translator$"):
        load_checkpoint(tmp_path)
    STATE_FILE.write(tmp_path / "last.safetensors", {}, {})
    with pytest.raises(RegardError, match=r"last\.safetensors is the saved state of a training, "):
        load_checkpoint(tmp_path / "last.safetensors")
    save_checkpoint(tmp_path / "best.safetensors", made())
    for path in (tmp_path, tmp_path / "last.safetensors"):
        with pytest.raises(RegardError, match=r"translator; there is one in .*best\.safetensors"):
            load_checkpoint(path)


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, made())
    header, tensors = FILE.read(path)
    header["config"]["model"]["hidden"] = 9
    FILE.write(path, tensors, header)
    with pytest.raises(RegardError, match="its weights do not fit its configuration"):
        load_checkpoint(path)


def test_a_flipped_bit_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, made())
    whole = path.read_bytes()
    header, tensors = FILE.read(path)
    name = "model.embeddings.target.weight"
    place = whole.index(tensors[name].numpy().tobytes()) + 5
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(RegardError, match=rf"is damaged: {name} is not as it was written \(its"):
        load_checkpoint(path)
    place = whole.index(b"dropout") - 1
    place = whole.index(b"0.1", place)
    path.write_bytes(whole[:place] + b"0.2" + whole[place + 3 :])
    with pytest.raises(RegardError, match="is damaged: the header is not as it was written"):
        load_checkpoint(path)
    metadata = {"format": FILE.format, FILE.kind: json.dumps(header)}  # of before checksums
    save_file(tensors, str(path), metadata=metadata)
    load_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_file_is_named(tmp_path, share):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, made())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(RegardError, match=r"a\.safetensors"):
        load_checkpoint(path)


def test_a_failed_writing_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, made())
    before = path.read_bytes()
    broken = Checkpoint(made().config, made().source, made().target, made().model, {"a": object()})
    with pytest.raises(TypeError):
        save_checkpoint(path, broken)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The bytes first, then the name, then the folder that has it."""
    path, seen = tmp_path / "a.safetensors", []
    fsync = os.fsync

    def noted(number):
        what = "folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file"
        seen.append((what, os.fstat(number).st_size > 100, path.exists()))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    FILE.write(path, {"a": torch.ones(100)}, {})
    assert [(what, named) for what, _, named in seen] == [("file", False), ("folder", True)]
    assert seen[0][1]  # the bytes are in it


def test_a_disk_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    FILE.write(path, {"a": torch.ones(3)}, {"n": 1})

    def full(number):
        raise OSError(errno.EIO, "the disk does not answer")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RegardError, match=r"a\.safetensors cannot be written: the disk does not"):
        FILE.write(path, {"a": torch.zeros(3)}, {"n": 2})
    assert FILE.read(path)[0] == {"n": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.safetensors"]


def test_those_that_ship_go_by_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_checkpoint("english-french").extra["languages"] == ["English", "French"]
    assert load_checkpoint("french-english").extra["languages"] == ["French", "English"]
    save_checkpoint(tmp_path / "english-french", made())
    assert load_checkpoint("english-french").extra["note"] == "é"


@pytest.mark.parametrize("name", SHIPPED)
def test_a_translator_that_ships_names_no_place_of_a_machine(name):
    config = load_checkpoint(name).config
    assert config.data.train == ("$REGARD_DATA/tatoeba/eng-fra.tsv.gz",)
    assert config == replace(config.without_paths(), data=config.data)
