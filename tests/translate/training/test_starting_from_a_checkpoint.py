"""A training that begins with the vocabularies and the weights of a checkpoint."""

import pytest
import torch
from toy_training import toy

from regard.errors import RegardError
from regard.translate.checkpoint import load_checkpoint
from regard.translate.config import Config
from regard.translate.training import Watcher, read_log, train


class Notes(Watcher):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    train(toy(folder / "data", "training.steps=20"), folder / "run")
    return folder / "run" / "best.safetensors"


def test_it_goes_on_with_other_sentences_and_the_same_words(tmp_path, first):
    config = toy(
        tmp_path / "data", f"training.start={first}", "training.steps=2",
        "training.optimiser.rate=1e-9", "vocabulary.source_size=5", count=60,
    )  # fmt: skip
    notes = Notes()
    trained = train(config, tmp_path / "run", watcher=notes)
    assert "trained from the weights of best.safetensors on" in notes.said[0]
    before, after = load_checkpoint(first), load_checkpoint(trained.folder.best)
    assert after.source.header() == before.source.header()
    for name, tensor in before.model.state_dict().items():
        torch.testing.assert_close(after.model.state_dict()[name], tensor, rtol=0, atol=1e-6)
    assert len(read_log(trained.folder.log)) > 0


def test_a_resumed_run_does_not_begin_again(tmp_path, first):
    config = toy(tmp_path / "data", f"training.start={first}", "training.steps=4")
    whole = train(config, tmp_path / "whole")
    part = toy(tmp_path / "data", f"training.start={first}", "training.steps=2")
    train(part, tmp_path / "parts")
    train(config, tmp_path / "parts", resume=True)
    one = load_checkpoint(whole.folder.last.with_name("best.safetensors")).model.state_dict()
    other = load_checkpoint(tmp_path / "parts" / "best.safetensors").model.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_what_does_not_fit_is_refused(tmp_path, first):
    config = toy(tmp_path / "data", f"training.start={first}", "model.hidden=20")
    with pytest.raises(RegardError, match=r"model\.hidden is 20, but it is \d+ in .*best"):
        train(config, tmp_path / "run")
    missing = toy(tmp_path / "data", f"training.start={tmp_path / 'no.safetensors'}")
    with pytest.raises(RegardError, match=r"training\.start: there is no file"):
        train(missing, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RegardError, match=r"training\.start is a.safetensors, whose embeddings"):
        Config.from_table({"training": {"start": "a.safetensors"}, "vectors": {"source": "v.txt"}})


def test_its_path_is_from_the_folder_of_the_file(tmp_path):
    (tmp_path / "a.toml").write_text('[training]\nstart = "runs/best.safetensors"\n')
    config = Config.from_file(tmp_path / "a.toml")
    assert config.training.start == str(tmp_path / "runs" / "best.safetensors")
    (tmp_path / "b.toml").write_text("")
    assert Config.from_file(tmp_path / "b.toml").training.start == ""


def capitals(folder):
    """The toy with capital letters, which a vocabulary in lower case does not know."""
    for path in folder.iterdir():
        path.write_text(path.read_text().upper())


def test_scores_go_by_the_vocabulary_that_is_used(tmp_path):
    quick = ("training.steps=1", "training.optimiser.rate=1e-9", "training.validation.metric=bleu")
    config = toy(tmp_path / "data", *quick, "vocabulary.lower=true")
    capitals(tmp_path / "data")
    begun = train(config, tmp_path / "first")
    assert "case:lc" in begun.scores["best", "valid"].bleu.signature
    more = (*quick, f"training.start={begun.folder.best}", "vocabulary.source_size=77")
    config = Config.from_table(config.table() | {"vocabulary": {}}, more)
    again = train(config, tmp_path / "second")
    assert again.scores["best", "valid"] == begun.scores["best", "valid"]
    assert load_checkpoint(again.folder.best).config.vocabulary.lower
    other = Config.from_table(config.table(), ["vocabulary.source_size=55", "training.steps=2"])
    assert train(other, tmp_path / "second", resume=True).step == 2


def test_the_translator_that_ships_can_be_begun_with(tmp_path):
    (tmp_path / "a.toml").write_text("[training]\nstart = 'english-french'\n")
    assert Config.from_file(tmp_path / "a.toml").training.start == "english-french"
    (tmp_path / "english-french").write_text("a file of that name")
    found = Config.from_file(tmp_path / "a.toml").training.start
    assert found == str(tmp_path / "english-french")
