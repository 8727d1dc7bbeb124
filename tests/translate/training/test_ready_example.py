"""The example of the repository: it learns, and its settings suit one another."""

from pathlib import Path

import pytest

from regard.translate.config import Config
from regard.translate.training import Watcher, train
from regard.translate.translator import Translator

EXAMPLE = Path(__file__).parents[3] / "examples/translate/small.toml"


def test_it_learns_in_fewer_steps_and_translates_by_greedy_search(tmp_path):
    config = Config.from_file(EXAMPLE, ["training.steps=150", "search.beam=1"])
    trained = train(config, tmp_path / "run")
    assert trained.ending == "finished" and trained.scores["best", "test"].bleu.value > 60
    found = Translator.load(trained.folder.best)("The girl sees a black cat.")
    assert found.text == "La fille voit un chat noir."


def test_its_900_sentences_are_all_different():
    config = Config.from_file(EXAMPLE)
    lines = Path(config.data.train[0]).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 900


class FirstStep(Exception):
    """The training has begun."""


class UpToFirstStep(Watcher):
    """Keeps what is noted and how many steps are planned, and ends at the first."""

    def __init__(self):
        self.notes = ""
        self.steps = 0

    def note(self, text):
        self.notes += text

    def stepped(self, now):
        self.steps = now.steps
        raise FirstStep


def begun(folder, *settings):
    watcher = UpToFirstStep()
    with pytest.raises(FirstStep):
        train(Config.from_file(EXAMPLE, settings), folder, watcher=watcher)
    return watcher


def test_its_steps_are_several_times_its_warm_up(tmp_path):
    watcher = begun(tmp_path / "run")
    assert watcher.steps >= 5 * Config.from_file(EXAMPLE).training.schedule.warmup > 0
    assert "pairs to learn from" in watcher.notes and "warmup" not in watcher.notes


def test_of_a_warm_up_that_is_too_long_it_would_be_told(tmp_path):
    watcher = begun(tmp_path / "run", "training.schedule.warmup=1000")
    assert watcher.steps < 1000 and "training.schedule.warmup is 1,000 steps" in watcher.notes
