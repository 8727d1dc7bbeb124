"""The head that a checkpoint's file names; all else in the file stays."""

import pytest
import torch
from safetensors import safe_open

from regard.errors import RegardError
from regard.translate.alignment import Head
from regard.translate.alignment.heads import preferred_head, save_preferred_head
from regard.translate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.translator import Translator
from regard.translate.vocabulary import WordVocabulary


def tensors(path):
    with safe_open(str(path), framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_a_head_is_written_and_nothing_else_changes(tmp_path):
    path = tmp_path / "small.safetensors"
    vocabulary = WordVocabulary.train(["a b c"], size=10)
    config = ModelConfig("transformer", hidden=8, heads=2, layers=2, feed_forward=8)
    model = build_model(config, len(vocabulary), len(vocabulary))
    made = Checkpoint(Config(model=config), vocabulary, vocabulary, model, {"languages": "x to y"})
    save_checkpoint(path, made, dtype=torch.float16)
    before = tensors(path)
    assert Translator.load(path).head == Head("0.cross", None)

    save_preferred_head(path, Head("1.cross", 0), "output")
    after = tensors(path)
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor)
    assert load_checkpoint(path).extra == {
        "languages": "x to y",
        "head": {"site": "1.cross", "index": 0, "reading": "output"},
    }
    translator = Translator.load(path)
    assert (translator.head, translator.reading) == (Head("1.cross", 0), "output")
    save_preferred_head(path, Head("1.cross", None), "input")
    assert preferred_head(load_checkpoint(path).extra) == (Head("1.cross", None), "input")
    assert preferred_head({}) is None


@pytest.mark.parametrize(
    "named",
    ["1.cross", {"site": "1.cross"}, {"site": ["x"], "index": 0}, {"site": "x", "index": "1"},
     {"site": "x", "index": 1.0}, {"site": "x", "index": True}],
)  # fmt: skip
def test_what_names_no_head_is_refused(named):
    with pytest.raises(RegardError, match=r"the checkpoint names the head .*, expected its site"):
        preferred_head({"head": named})


def test_the_preferred_head_is_read_so_by_its_name_too(tmp_path):
    path = tmp_path / "small.safetensors"
    vocabulary = WordVocabulary.train(["a b c"], size=10)
    config = ModelConfig("transformer", hidden=8, heads=2, layers=2, feed_forward=8)
    model = build_model(config, len(vocabulary), len(vocabulary))
    save_checkpoint(path, Checkpoint(Config(model=config), vocabulary, vocabulary, model))
    assert Translator.load(path, head="1.cross").reading == "input"
    save_preferred_head(path, Head("1.cross", None), "output")
    for head in (None, "1.cross"):
        assert Translator.load(path, head=head).reading == "output"
    assert Translator.load(path, head="0.cross:1").reading == "input"  # chosen for that head alone
    assert Translator.load(path, head="1.cross", reading="input").reading == "input"
