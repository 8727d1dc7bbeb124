"""What cannot be exported is refused, and nothing is left behind."""

import sys

import pytest
from exported_models import checkpoint
from torch import nn

from regard.errors import MissingExtraError, RegardError, UnavailableError
from regard.translate import export
from regard.translate.vocabulary import WordVocabulary


@pytest.mark.parametrize(
    ("options", "format", "text"),
    [
        ({"name": "bahdanau"}, "ctranslate2", "the model is 'bahdanau'.*no recurrent networks"),
        ({"norm": "pre"}, "marian", "norms before the sub-layers.*expected model.norm 'post'"),
        ({"kind": WordVocabulary}, "marian", "the source vocabulary has whole words"),
        ({"lower": True}, "marian", "the source vocabulary reads texts in lower case"),
        ({}, "onnx", "format is 'onnx', expected one of ctranslate2, marian"),
    ],
)
def test_what_a_format_does_not_have_is_named(options, format, text, tmp_path):
    with pytest.raises(RegardError, match=text):
        export(checkpoint(**options), tmp_path / "model", format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", ["activation", "scale", "mixed"])
def test_a_transformer_of_other_parts_is_refused(change, tmp_path):
    exported = checkpoint()
    blocks = exported.model.decoder.layers
    if change == "scale":
        blocks[0].self_attention.part.softcap = 3.0
        expected = "has no grouped heads.*nor have the formats"
    elif change == "activation":
        blocks[0].feed_forward.part.activation = nn.Tanh()
        expected = "the model has a Tanh.*expected one of GELU, ReLU, SiLU"
    else:
        blocks[0].feed_forward.part.activation = nn.GELU()
        expected = "activation differs by layer"
    with pytest.raises(UnavailableError, match=expected):
        export(exported, tmp_path / "model", "ctranslate2")


def test_only_a_new_or_empty_folder_is_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RegardError, match="is not empty, expected a new or empty folder"):
        export(checkpoint(), tmp_path, "ctranslate2")
    with pytest.raises(RegardError, match="is a file, expected a folder or nothing"):
        export(checkpoint(), tmp_path / "file", "ctranslate2")
    with pytest.raises(RegardError, match="expected a Checkpoint: load_checkpoint"):
        export("best.safetensors", tmp_path / "model", "ctranslate2")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("format", ["ctranslate2", "marian"])
def test_a_missing_package_is_named(format, tmp_path, monkeypatch):
    package = {"ctranslate2": "ctranslate2", "marian": "transformers"}[format]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"regard\[{package}\]"):
        export(checkpoint(), tmp_path / "model", format)
    assert not list(tmp_path.iterdir())
