"""`regard check-model` on checkpoints, and its exit code."""

import json
import re

import pytest
import torch
import typer
from typer.testing import CliRunner

from regard.cli.check_model import check_model_command
from regard.errors import RegardError
from regard.record.tensor_file import TensorFile
from regard.translate import checks
from regard.translate.checkpoint import Checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.vocabulary import WordVocabulary

VOCABULARY = WordVocabulary.train(["one two three four five six seven eight"], size=30)


def run(*arguments):
    """The command alone; an error of regard comes through."""
    app = typer.Typer()
    app.command()(check_model_command)
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def saved(tmp_path):
    def save(name, change=lambda model: None, **settings):
        torch.manual_seed(0)
        own = {"heads": 2, "feed_forward": 8} if name == "transformer" else {}
        config = ModelConfig(name, embedding=8, hidden=8, **own, **settings)
        model = build_model(config, len(VOCABULARY), len(VOCABULARY))
        change(model)
        path = tmp_path / f"{name}.safetensors"
        save_checkpoint(path, Checkpoint(Config(model=config), VOCABULARY, VOCABULARY, model))
        return path

    return save


def test_a_sound_model_passes(saved):
    result = run(saved("transformer"))
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    assert said.count("passed: ") == 3 and "the decoder sees the past alone" in said
    assert "passed: causal (no word may depend on later ones)" in said
    assert said.endswith("the word with the highest logit comes next")
    assert all(line == line.rstrip() and len(line) <= 80 for line in result.stdout.splitlines())
    assert re.search(r"\(up to [\d.]+ % of a row went elsewhere\)", said)


def test_the_tutorial_fails_and_says_why(saved):
    result = run(saved("tutorial"))
    assert result.exit_code == 1
    assert "failed: uses the encoder" in result.stdout
    assert "never see the source words" in " ".join(result.stdout.split())


def test_without_attention_the_last_does_not_apply(saved):
    result = run(saved("none"), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [one["passed"] for one in found] == [True, True, None]
    assert [one["name"] for one in found] == ["causal", "padding", "uses the encoder"]
    assert found[2]["wanted"] == "attention must depend on the source"


def test_another_check_is_printed_with_what_it_wants(saved, monkeypatch):
    another = checks._Check("short", "words must be short", lambda probe: (True, "they are"))
    monkeypatch.setattr(checks, "_CHECKS", (*checks._CHECKS, another))
    assert "passed: short (words must be short)" in run(saved("none")).stdout


def test_a_model_that_trained_to_nan_fails(saved):
    result = run(saved("bahdanau", lambda model: model.embeddings.bias.data.fill_(torch.nan)))
    said = " ".join(result.stdout.split())
    assert result.exit_code == 1 and said.count("failed: ") == 3
    assert "values of the parameter embeddings.bias are NaN or infinite" in said


def test_a_model_for_short_sentences_is_checked(saved):
    result = run(saved("tutorial", longest=5))
    assert result.exit_code == 1 and result.stdout.count("passed: ") == 2


def test_the_state_of_a_training_is_told_from_its_translator(saved, tmp_path):
    saved("none").rename(tmp_path / "best.safetensors")
    state = TensorFile("training", "regard-training")
    state.write(tmp_path / "last.safetensors", {"pending": torch.zeros(1)}, {})
    expected = r"last.safetensors is the saved state of a training.*best.safetensors"
    with pytest.raises(RegardError, match=expected):
        run(tmp_path / "last.safetensors")


def test_what_is_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RegardError, match="text"):
        run(tmp_path / "text")
