"""Signals end a run in order wherever it is; a second one ends it at once."""

import os
import signal
import time

import pytest
from toy_training import toy

import regard.translate.training.run as run
from regard.translate.training import Watcher, train
from regard.translate.training.resuming import load_state
from regard.translate.training.stopping import stop_on_signal


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


class AskingWhenScored(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)
        if text.startswith("translating"):
            ask()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("part", ["read_data", "set_up"])
def test_asked_before_the_first_step(tmp_path, monkeypatch, number, part):
    """It ends after the part it is at, and a new run leaves nothing behind."""
    work = getattr(run, part)

    def asked_meanwhile(*arguments):
        ask(number)
        return work(*arguments)

    monkeypatch.setattr(run, part, asked_meanwhile)
    ended = train(toy(tmp_path / "data", "training.steps=3"), tmp_path / "run")
    assert (ended.ending, ended.step, ended.scores) == ("asked", 0, {})
    assert not (tmp_path / "run").exists()


def test_asked_before_a_resumed_run_goes_on(tmp_path, monkeypatch):
    first = train(toy(tmp_path / "data", "training.steps=3"), tmp_path / "run")
    before = {path: path.read_bytes() for path in first.folder.path.rglob("*.*") if path.is_file()}
    read = run.read_data
    monkeypatch.setattr(run, "read_data", lambda data: (ask(), read(data))[1])
    ended = train(toy(tmp_path / "data", "training.steps=9"), tmp_path / "run", resume=True)
    assert (ended.ending, ended.step, ended.best) == ("asked", 3, first.best)
    assert ended.seconds > load_state(first.folder.last).position.seconds > 0
    assert {path: path.read_bytes() for path in before} == before


def test_asked_while_it_scores(tmp_path):
    config = toy(tmp_path / "data", "training.steps=2")
    asking = AskingWhenScored()
    ended = train(config, tmp_path / "run", watcher=asking)
    assert ended.ending == "asked" and ended.scores == {} and ended.step == 2
    assert sum(text.startswith("translating") for text in asking.notes) == 1
    assert ended.folder.best.exists() and not ended.folder.scores.exists()
    again = train(config, tmp_path / "run", resume=True)
    assert again.ending == "finished" and ("average", "valid") in again.scores


def test_asked_during_the_last_scoring(tmp_path):
    class Last(AskingWhenScored):
        def note(self, text):
            if "average" in text:
                super().note(text)

    ended = train(toy(tmp_path / "data", "training.steps=2"), tmp_path / "run", watcher=Last())
    assert ended.ending == "asked" and not ended.folder.scores.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_interrupts_at_once(tmp_path, monkeypatch, number):
    def endless(data):
        ask(number)
        time.sleep(1.1)
        ask(number)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(run, "read_data", endless)
    with pytest.raises(KeyboardInterrupt):
        train(toy(tmp_path / "data"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_signals_that_come_together_are_one():
    """A terminal sends Ctrl-C to torchrun and to its processes, and torchrun passes it on."""
    with stop_on_signal() as asked:
        assert not asked
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            ask(number)
        assert asked
