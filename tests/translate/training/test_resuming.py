"""A run that is resumed goes on exactly: losses, order of data, dropout, parameters."""

import os
import signal

import numpy
import pytest
import torch
from toy_training import toy

from regard.errors import RegardError
from regard.translate.alignment import Head
from regard.translate.alignment.heads import save_preferred_head
from regard.translate.checkpoint import FILE, STATE_FILE, load_checkpoint
from regard.translate.training import Watcher, read_log, train
from regard.translate.training.resuming import load_state


def rows(folder, kind="train"):
    return [
        {key: value for key, value in row.items() if "second" not in key}
        for row in read_log(folder / "log.csv")
        if row["kind"] == kind
    ]


def same_tensors(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Interrupting(Watcher):
    """Sends this process SIGTERM after so many steps, as somebody who wants it to end."""

    def __init__(self, steps):
        self.left = steps

    def stepped(self, now):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("training.accumulate=2", "training.log_every=4", "training.forcing=0.5"),
        ("model.name=transformer", "model.hidden=16", "model.feed_forward=32", "model.tie=all",
         "vocabulary.joint=true", "training.precision=bf16"),
        ("data.buffer=60", "model.name=luong-general", "training.guidance=0.5"),
        pytest.param(
            ("training.optimiser=sgd", "training.schedule=cosine", "training.validation.every=5"),
            marks=pytest.mark.slow,
        ),
        pytest.param(('training.precision="64"',), marks=pytest.mark.slow),
        ("vocabulary.tokenised=false", "vocabulary.kind=pieces", "training.sample_pieces=0.1",
         "training.epochs=2", "data.buffer=60"),
    ],
    ids=["adam", "accumulated-and-unforced", "transformer-bfloat16", "streamed", "sgd", "float64",
         "streamed-pieces"],
)  # fmt: skip
def test_a_run_in_parts_is_the_unbroken_run(tmp_path, settings):
    config = toy(tmp_path / "data", *settings)
    whole = train(config, tmp_path / "whole")
    ends = []
    while not ends or ends[-1].ending == "asked":
        ends.append(train(config, tmp_path / "parts", resume=True, watcher=Interrupting(5)))

    assert len(ends) >= 3 and whole.ending == ends[-1].ending == "finished"
    for kind in ("train", "valid"):
        assert rows(tmp_path / "parts", kind) == rows(tmp_path / "whole", kind)
    one, other = (load_state(tmp_path / name / "last.safetensors") for name in ("whole", "parts"))
    assert same_tensors(one.weights, other.weights)
    assert same_tensors(one.optimiser, other.optimiser)
    for generator in ("torch", "numpy"):  # Python's is used by the run-time checks of the tests
        assert torch.equal(one.random[0][generator], other.random[0][generator])
    for name in ("best", "average"):
        file = f"{name}.safetensors"
        made = [FILE.read(tmp_path / run / file) for run in ("whole", "parts")]
        assert made[0][0] == made[1][0] and same_tensors(made[0][1], made[1][1])
    assert whole.scores == ends[-1].scores and whole.best == ends[-1].best


def test_another_seed_is_another_run(tmp_path):
    for seed in (0, 1):
        train(
            toy(tmp_path / "data", f"training.seed={seed}", "training.epochs=1"),
            tmp_path / str(seed),
        )
    assert rows(tmp_path / "0") != rows(tmp_path / "1")


def test_training_leaves_no_trace_in_random_numbers_and_signals(tmp_path):
    torch.manual_seed(5)
    numpy.random.seed(5)
    handler = signal.getsignal(signal.SIGTERM)
    expected = torch.rand(3), numpy.random.rand()
    torch.manual_seed(5)
    numpy.random.seed(5)
    train(toy(tmp_path / "data", "training.steps=2"), tmp_path / "run")
    assert torch.equal(torch.rand(3), expected[0])
    assert numpy.random.rand() == expected[1]
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("model.hidden=32", "model.hidden is 32, but the run began with 24"),
        ("vocabulary.lower=true", "vocabulary.lower is True, but the run began with False"),
        (
            "training.optimiser=sgd",
            "training.optimiser.name is 'sgd', but the run began with 'adam'",
        ),
        ("data.buffer=60", "data.buffer is 60, but the run began with 0"),
        ("data.first=100", "the training pairs are not those that the run began with"),
        ("training.seed=5", "training.seed is 5, but the run began with 0"),
        ("training.batch_tokens=90", "training.batch_tokens is 90, but the run began with 200"),
        ("training.batch_sentences=9", "training.batch_sentences is 9, but the run began with 0"),
        ("training.accumulate=2", "training.accumulate is 2, but the run began with 1"),
        (
            "training.validation.metric=bleu",
            "training.validation.metric is 'bleu', but the run began with 'loss'",
        ),
        (
            "training.validation.sentences=9",
            "training.validation.sentences is 9, but the run began with 0",
        ),
    ],
)
def test_another_training_is_not_resumed(tmp_path, setting, wanted):
    train(toy(tmp_path / "data", "training.steps=1"), tmp_path / "run")
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    with pytest.raises(RegardError, match=wanted):
        train(toy(tmp_path / "data", setting), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


def test_other_validation_pairs_are_refused(tmp_path):
    config = toy(tmp_path / "data", "training.steps=1")
    train(config, tmp_path / "run")
    with (tmp_path / "data" / "valid.tsv").open("a") as file:
        file.write("a b\tb a\n")
    with pytest.raises(RegardError, match="the validation pairs are not those that the run began"):
        train(config, tmp_path / "run", resume=True)


def test_settings_that_changed_are_told(tmp_path):
    class Notes(Watcher):
        def __init__(self):
            self.told = []

        def note(self, text):
            self.told += text.split("\n")

    config = toy(tmp_path / "data", "training.steps=2")
    train(config, tmp_path / "run")
    again = toy(tmp_path / "data", "training.steps=3", "training.optimiser.rate=0.5")
    notes = Notes()
    train(again, tmp_path / "run", resume=True, watcher=notes)
    assert "training.steps is now 3; the run had 2" in notes.told
    rate = config.training.optimiser.rate
    assert f"training.optimiser.rate is now 0.5; the run had {rate}" in notes.told
    assert sum("the run had" in line for line in notes.told) == 2


def test_a_state_without_a_note_of_its_validation_pairs_is_resumed(tmp_path):
    """As it was saved before they were noted."""
    train(toy(tmp_path / "data", "training.steps=1"), tmp_path / "run")
    last = tmp_path / "run" / "last.safetensors"
    header, tensors = STATE_FILE.read(last)
    del header["position"]["valid"]
    STATE_FILE.write(last, tensors, header)
    assert (
        train(toy(tmp_path / "data", "training.steps=2"), tmp_path / "run", resume=True).step == 2
    )
    assert load_state(last).position.valid is not None


@pytest.mark.parametrize("setting", ["training.steps=3", "training.epochs=1"])
def test_an_earlier_end_is_an_end_with_a_look(tmp_path, setting):
    """Resumed behind its end, before any look at the validation pairs: the best is chosen now."""
    seldom = "training.validation.every=1000"
    longer = toy(tmp_path / "data", seldom, "training.batch_tokens=300")
    begun = train(longer, tmp_path / "run", watcher=Interrupting(8))
    assert begun.ending == "asked" and not begun.best.kept
    shorter = toy(tmp_path / "data", seldom, "training.batch_tokens=300", setting)
    ended = train(shorter, tmp_path / "run", resume=True)
    assert ended.ending == "finished" and [one.step for one in ended.best.kept] == [begun.step]
    assert ended.folder.best.exists() and ("average", "valid") in ended.scores


def test_fewer_to_average_are_the_best_of_them(tmp_path):
    three = toy(tmp_path / "data", "training.validation.average=3", "training.epochs=3")
    kept = train(three, tmp_path / "run").best.kept
    one = toy(tmp_path / "data", "training.validation.average=1", "training.epochs=3")
    again = train(one, tmp_path / "run", resume=True)
    assert len(kept) == 3 and again.best.kept == kept[:1]
    assert load_checkpoint(again.folder.average).extra["steps"] == [kept[0].step]


def test_more_epochs_continue_a_finished_run(tmp_path):
    train(toy(tmp_path / "data", "training.epochs=1"), tmp_path / "run")
    first = rows(tmp_path / "run")
    again = train(toy(tmp_path / "data", "training.epochs=1"), tmp_path / "run", resume=True)
    assert again.ending == "finished" and rows(tmp_path / "run") == first
    train(toy(tmp_path / "data", "training.epochs=2"), tmp_path / "run", resume=True)
    assert rows(tmp_path / "run")[: len(first)] == first
    assert len(rows(tmp_path / "run")) == 2 * len(first)


def test_what_is_finished_keeps_the_head_it_was_told(tmp_path):
    config = toy(tmp_path / "data", "training.steps=6", "training.validation.every=3")
    folder = train(config, tmp_path / "run").folder
    for path in (folder.best, folder.average):
        save_preferred_head(path, Head("cross", 0), "input")
    before = [path.read_bytes() for path in (folder.best, folder.average)]
    train(config, tmp_path / "run", resume=True)
    assert [path.read_bytes() for path in (folder.best, folder.average)] == before
    longer = toy(tmp_path / "data", "training.steps=9", "training.validation.every=3")
    train(longer, tmp_path / "run", resume=True)
    steps = load_checkpoint(folder.average).extra
    assert max(steps["steps"]) == 9 and "head" not in steps
