"""Logs: rows that go on, events that TensorBoard reads, speeds of the steps alone."""

import time
from itertools import pairwise

import pytest
from toy_training import toy

from regard.errors import RegardError
from regard.translate.training import Watcher, read_log, train
from regard.translate.training.folder import CsvLog, EventLog
from regard.translate.translator import Translator


def test_a_log_that_goes_on_has_no_row_twice_and_none_cut_off(tmp_path):
    path = tmp_path / "log.csv"
    log = CsvLog(path, after=0)
    for step in (1, 2, 3):
        log.write({"step": step, "kind": "train", "loss": 0.1 + step})
    log.close()
    with path.open("a") as file:
        file.write("12,0,tra")
    log = CsvLog(path, after=2)
    log.write({"step": 3, "kind": "train", "loss": 7.0})
    log.close()
    assert [(row["step"], row["loss"]) for row in read_log(path)] == [
        ("1", "1.1"), ("2", "2.1"), ("3", "7.0")
    ]  # fmt: skip
    assert len(path.read_text().splitlines()) == 4


def test_a_log_on_a_full_disk_is_named(tmp_path):
    log = CsvLog(tmp_path / "log.csv", after=0)
    log.file.close()
    log.file = open("/dev/full", "a")  # noqa: SIM115
    with pytest.raises(RegardError, match=r"log\.csv cannot be written: No space left on device$"):
        log.write({"step": 1, "kind": "train"})
    log.close()


def test_events_that_have_no_place_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match=r"events cannot be written: Not a directory"):
        EventLog(tmp_path / "file" / "events", after=0)


def events(folder):
    """By tag, the steps and values; as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_events_have_the_numbers_of_the_log(tmp_path):
    settings = ("training.tensorboard=true", "training.validation.metric=bleu")
    first = toy(tmp_path / "data", *settings, "training.steps=3", "training.validation.every=2")
    train(first, tmp_path / "run")
    more = toy(tmp_path / "data", *settings, "training.steps=6", "training.validation.every=2")
    folder = train(more, tmp_path / "run", resume=True).folder
    found = events(folder.events)
    for kind, columns in {
        "train": ("loss", "rate", "forcing", "tokens", "tokens_per_second", "seconds"),
        "valid": ("loss", "accuracy", "bleu", "chrf"),
    }.items():
        rows = [row for row in read_log(folder.log) if row["kind"] == kind]
        for column in columns:
            wanted = [(int(row["step"]), pytest.approx(float(row[column]))) for row in rows]
            assert found[f"{kind}/{column}"] == wanted, (kind, column)
    assert "train/bleu" not in found and len(found["train/loss"]) == 6


def test_what_comes_after_the_step_a_run_resumes_from_is_taken_out_of_the_events(tmp_path):
    for after, steps in ((0, (1, 2, 3)), (1, (2,))):
        log = EventLog(tmp_path, after)
        for step in steps:
            log.write({"kind": "train", "step": step, "loss": 10.0 * after + step})
        log.close()
        time.sleep(1.1)  # the names of their files are in whole seconds
    assert events(tmp_path) == {"train/loss": [(1, 1.0), (2, 12.0)]}


def test_the_speed_is_that_of_the_steps_without_the_looks(tmp_path):
    class Slow(Watcher):
        def __init__(self):
            self.now = []

        def validated(self, step, found, best):
            time.sleep(0.3)

        def stepped(self, now):
            self.now.append(now)

    config = toy(tmp_path / "data", "training.epochs=2", "training.validation.every=3")
    watcher = Slow()
    trained = train(config, tmp_path / "run", watcher=watcher)
    rows = [row for row in read_log(trained.folder.log) if row["kind"] == "train"]
    looks = 0
    for before, row in pairwise(rows):
        passed = float(row["seconds"]) - float(before["seconds"])
        counted = (int(row["tokens"]) - int(before["tokens"])) / float(row["tokens_per_second"])
        looked = int(before["step"]) % 3 == 0
        looks += looked
        assert passed - counted >= 0.3 * looked - 1e-3
    assert looks >= 2
    spent = int(rows[-1]["tokens"]) / watcher.now[-1].tokens_per_second
    assert trained.seconds - spent >= 0.3 * looks


def test_a_row_has_the_rate_and_the_forcing_of_its_own_step(tmp_path):
    settings = (
        "training.steps=3", "training.optimiser.rate=0.004", "training.schedule.warmup=4",
        "training.forcing.name=linear", "training.forcing.steps=4",
    )  # fmt: skip
    trained = train(toy(tmp_path / "data", *settings), tmp_path / "run")
    rows = [row for row in read_log(trained.folder.log) if row["kind"] == "train"]
    assert [float(row["rate"]) for row in rows] == pytest.approx([0.001, 0.002, 0.003])
    assert [float(row["forcing"]) for row in rows] == [1.0, 0.75, 0.5]


def test_a_row_that_is_none_is_left_out(tmp_path):
    path = tmp_path / "log.csv"
    CsvLog(path, after=0).close()
    with path.open("a") as file:
        file.write("x" + "," * 11 + "\n" + "1,0,train" + "," * 9 + "\n")
    CsvLog(path, after=1).close()
    assert [row["step"] for row in read_log(path)] == ["1"]


class Seen(Watcher):
    """What was told of a training."""

    def __init__(self):
        self.notes, self.losses, self.best = [], [], []

    def note(self, text):
        self.notes.append(text)

    def stepped(self, progress):
        self.losses.append(progress.loss)

    def validated(self, step, validation, best):
        self.best.append(best)


def test_a_validation_loss_worse_than_guessing_is_divergence_and_no_best(tmp_path):
    seen = Seen()
    settings = ("training.optimiser.rate=30", "training.epochs=1", "training.optimiser.clip=0")
    train(toy(tmp_path / "data", *settings), tmp_path / "run", watcher=seen)
    assert any("the training diverges: a validation loss of" in note for note in seen.notes)
    assert seen.best == [False]


def test_the_translators_of_a_run_are_calibrated(tmp_path):
    run = train(toy(tmp_path / "data"), tmp_path / "run")
    for path in (run.folder.best, run.folder.average):
        translator = Translator.load(path)
        translation = translator("a b c d")
        assert 0 < translation.confidence < 1
        assert not any("unlike" in remark for remark in translation.remarks)
        assert any("unlike" in remark for remark in translator("z z z z z z").remarks)


def test_the_loss_is_told_from_the_first_step_on(tmp_path):
    seen = Seen()
    config = toy(tmp_path / "data", "training.steps=3", "training.log_every=100")
    train(config, tmp_path / "run", watcher=seen)
    assert all(0 < loss < 10 for loss in seen.losses) and len({*seen.losses}) == 3
    assert seen.best == [True] and not any("diverges" in note for note in seen.notes)
