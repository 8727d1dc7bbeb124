"""Subword regularisation: other pieces in each epoch, of training sentences alone."""

import pytest
from toy_training import toy

from regard.errors import RegardError
from regard.translate.tokens import UNKNOWN
from regard.translate.training import Watcher, train
from regard.translate.training import loop as training_loop
from regard.translate.training.step import Stepper

PIECES = ("vocabulary.tokenised=false", "vocabulary.kind=pieces")


def test_each_epoch_has_other_pieces_and_validation_its_own(tmp_path, monkeypatch):
    epochs, validated, settings = [], [], []
    make, look = Stepper.make, training_loop.loss_and_accuracy
    run = training_loop.Loop.run

    def watched_make(self, *arguments):
        if not any(self.examples is examples for examples in epochs):
            epochs.append(self.examples)
        return make(self, *arguments)

    def watched_look(model, examples, *arguments):
        validated.append(examples)
        return look(model, examples, *arguments)

    def watched_run(self):
        settings.append(self.setting)
        return run(self)

    monkeypatch.setattr(Stepper, "make", watched_make)
    monkeypatch.setattr(training_loop, "loss_and_accuracy", watched_look)
    monkeypatch.setattr(training_loop.Loop, "run", watched_run)
    options = (*PIECES, "training.sample_pieces=0.1", "training.epochs=3")
    config = toy(tmp_path / "data", *options, count=60)
    train(config, tmp_path / "run")
    (setting,) = settings
    assert len(epochs) == 3
    for side in ("source", "target"):
        vocabulary = getattr(setting.vocabularies, side)
        own = getattr(setting.train, side)
        texts = [vocabulary.decode(tokens) for tokens in own]
        drawn = [getattr(examples, side) for examples in epochs]
        assert drawn[0] != drawn[1] != drawn[2] != own
        for sentences in drawn:
            assert [vocabulary.decode(tokens) for tokens in sentences] == texts
            assert all(UNKNOWN not in tokens for tokens in sentences)
    assert all(examples is setting.valid for examples in validated)


class Notes(Watcher):
    def __init__(self):
        self.text = ""

    def note(self, text):
        self.text += text


def test_the_summary_says_how_the_losses_differ(tmp_path):
    config = toy(tmp_path / "data", *PIECES, "training.sample_pieces=0.1", "training.steps=1")
    notes = Notes()
    train(config, tmp_path / "run", watcher=notes)
    assert "with dropout and label smoothing and sampled pieces, which validation has" in notes.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ((), "the source vocabulary has whole words: expected vocabulary.kind = 'pieces'"),
        ((*PIECES, "training.guidance=0.1"), "links of guidance are between pieces that do not"),
    ],
)
def test_refusals(settings, text, tmp_path):
    config = toy(tmp_path / "data", *settings, "training.sample_pieces=0.1")
    with pytest.raises(RegardError, match=text):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_share_is_expected(tmp_path):
    with pytest.raises(RegardError, match=r"training\.sample_pieces must be from 0 to 1, found 2"):
        toy(tmp_path / "data", *PIECES, "training.sample_pieces=2")
