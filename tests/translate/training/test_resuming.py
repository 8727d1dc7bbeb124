"""A run that is resumed goes on exactly: losses, order of data, dropout, parameters."""

import os
import signal

import numpy
import pytest
import torch
from toy_training import toy

from regard.errors import RegardError
from regard.translate.checkpoint import FILE
from regard.translate.training import Watcher, read_log, train
from regard.translate.training.state import load_state


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
        ("training.optimiser=sgd", "training.schedule=cosine", "training.validation.every=5"),
    ],
    ids=["adam", "accumulated-and-unforced", "transformer-bfloat16", "sgd"],
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
        ("data.first=100", "the training pairs are not those that the run began with"),
    ],
)
def test_another_training_is_not_resumed(tmp_path, setting, wanted):
    train(toy(tmp_path / "data", "training.steps=1"), tmp_path / "run")
    before = (tmp_path / "run" / "last.safetensors").read_bytes()
    with pytest.raises(RegardError, match=wanted):
        train(toy(tmp_path / "data", setting), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == before


def test_a_folder_with_something_in_it_is_refused_and_kept(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RegardError, match=r"run is not empty: continue its run with --resume"):
        train(toy(tmp_path / "data"), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_more_epochs_continue_a_finished_run(tmp_path):
    train(toy(tmp_path / "data", "training.epochs=1"), tmp_path / "run")
    first = rows(tmp_path / "run")
    again = train(toy(tmp_path / "data", "training.epochs=1"), tmp_path / "run", resume=True)
    assert again.ending == "finished" and rows(tmp_path / "run") == first
    train(toy(tmp_path / "data", "training.epochs=2"), tmp_path / "run", resume=True)
    assert rows(tmp_path / "run")[: len(first)] == first
    assert len(rows(tmp_path / "run")) == 2 * len(first)
