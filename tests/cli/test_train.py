"""`regard train`: one command from a file to scores; errors in one line; signals and resuming."""

import errno
import io
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from regard.cli import main
from regard.cli.threads import use_free_cores
from regard.cli.train import Bar, Lines, _duration
from regard.translate.checkpoint import load_checkpoint
from regard.translate.training import (
    RunFolder,
    TrainingProgress,
    TrainingResult,
    Validation,
    read_log,
)
from regard.translate.training.stopping import Best

CONFIG = """
[data]
train = "train.tsv"
valid = "valid.tsv"
test = "valid.tsv"
[vocabulary]
tokenised = true
[model]
name = "dot"
embedding = 8
hidden = 12
[training]
epochs = 2
batch_tokens = 60
log_every = 1
"""
PAIRS = "".join(f"{a} {b} x\tx {b} {a}\n" for a in "abcdef" for b in "abcdef")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.tsv").write_text(PAIRS)
    (tmp_path / "valid.tsv").write_text("a b x\tx b a\nf e x\tx e f\n")
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["regard", "train", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_one_command_trains_and_says_where_things_are(folder, monkeypatch, capsys):
    out = folder / "run"
    code, said, told = run(monkeypatch, capsys, folder / "config.toml", "--out", out)
    assert code == 0
    assert "36 pairs to learn from, 2 to validate with, 2 to test with" in told
    assert "validation loss" in told
    assert "all steps done" in said and "average" in said and "test" in said
    assert "\nBLEU: nrefs:1|case:mixed|eff:no|tok:13a|" in said and "\nchrF: nrefs:1|" in said
    assert "\nBLEU of words: nrefs:1|case:lc|eff:no|tok:none|" in said
    for name in (
        "best.safetensors", "average.safetensors", "last.safetensors", "log.csv", "scores.json"
    ):  # fmt: skip
        assert str(out / name) in said.replace("\n", "") and (out / name).exists()
    assert "by beam search, 5 hypotheses" in said
    assert "losses are nats a target token; that of training is of the last step" in told
    named = re.search(r'try it: regard translate --model (\S+) "a sentence"$', said.rstrip())
    assert load_checkpoint(named[1]).config.model.name == "dot"
    assert 'name = "dot"' in (out / "config.toml").read_text()


def test_the_folder_is_kept_unless_resumed(folder, monkeypatch, capsys):
    out = folder / "run"
    assert run(monkeypatch, capsys, folder / "config.toml", "--out", out)[0] == 0
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    code, _, told = run(monkeypatch, capsys, folder / "config.toml", "--out", out)
    assert code == 1 and "is not empty: continue its run with --resume" in told
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    more = (folder / "config.toml", "--out", out, "--resume", "--set", "training.epochs=3")
    code, _, told = run(monkeypatch, capsys, *more)
    steps = [int(row["step"]) for row in read_log(out / "log.csv") if row["kind"] == "train"]
    assert code == 0 and "trained from step" in told
    assert steps == list(range(1, len(steps) + 1))


def test_resuming_uses_the_configuration_of_the_run(folder, monkeypatch, capsys):
    out, sizes = folder / "run", ("--set", "model.hidden=7", "--set", "training.epochs=1")
    assert run(monkeypatch, capsys, folder / "config.toml", "--out", out, *sizes)[0] == 0
    begun = read_log(out / "log.csv")[-1]
    for words in ((folder / "config.toml",), ()):  # which has another size, or is not named
        code, said, _ = run(monkeypatch, capsys, *words, "--out", out, "--resume")
        assert code == 0 and f"{begun['step']} steps" in said
    more = ("--out", out, "--resume", "--set", "training.epochs=2")
    code, _, told = run(monkeypatch, capsys, *more)
    assert code == 0 and "training.epochs is now 2; the run had 1" in told
    assert load_checkpoint(out / "best.safetensors").config.model.hidden == 7
    code, _, told = run(monkeypatch, capsys, "--out", out)
    assert code == 1 and told.startswith("regard: there is no configuration file: name one, or")
    (out / "last.safetensors").unlink()
    code, _, told = run(monkeypatch, capsys, "--out", out, "--resume")
    assert code == 1 and "has no saved state: name its configuration file" in told


def test_results_of_an_earlier_end_are_not_listed(folder, monkeypatch, capsys):
    out = folder / "run"
    assert run(monkeypatch, capsys, folder / "config.toml", "--out", out)[0] == 0
    ended = TrainingResult(RunFolder(out), "asked", 3, 1.0, Best("loss", 1))
    monkeypatch.setattr("regard.cli.train.train_translator", lambda *_, **options: ended)
    _, said, _ = run(monkeypatch, capsys, "--out", out, "--resume")
    assert "best.safetensors" in said and "last.safetensors" in said
    assert "average.safetensors" not in said and "scores.json" not in said


def test_threads_are_the_free_cores_or_those_of_the_run(folder, monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    counts = []
    monkeypatch.setattr("torch.set_num_threads", counts.append)
    monkeypatch.setattr("torch.get_num_threads", lambda: counts[-1] if counts else 4)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for load, expected in ((0.1, 4), (1.4, 3), (9.0, 1)):
        counts.clear()
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        use_free_cores()
        assert counts == [expected]
    assert run(monkeypatch, capsys, folder / "config.toml", "--out", folder / "run")[0] == 0
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    assert run(monkeypatch, capsys, "--out", folder / "run", "--resume")[0] == 0
    assert counts[-1] == 1
    counts.clear()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    use_free_cores()
    assert counts == []


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("missing.toml",), "missing.toml cannot be read: No such file or directory"),
        (("config.toml", "--set", "model.hiden=3"), "no setting model.hiden; did you mean"),
        (("config.toml", "--set", "model.name=dto"), "'dto', expected one of none, "),
        (("config.toml", "--set", "data.train=nothing.tsv"), "nothing.tsv"),
        (("config.toml", "--minutes", "-1"), "--minutes is -1.0, expected at least 0"),
    ],
)
def test_errors_are_one_line(folder, monkeypatch, capsys, arguments, wanted):
    monkeypatch.chdir(folder)
    code, _, told = run(monkeypatch, capsys, *arguments, "--out", folder / "run")
    assert code == 1 and wanted in told and "Traceback" not in told
    assert not (folder / "run").exists()


@pytest.mark.parametrize("made", [False, True])
def test_there_must_be_a_run_to_resume(folder, monkeypatch, capsys, made):
    out = folder / "typo"
    if made:
        out.mkdir()
    code, _, told = run(monkeypatch, capsys, folder / "config.toml", "--out", out, "--resume")
    wanted = f"regard: there is no run in {out} to resume; leave out --resume to begin one\n"
    assert (code, told) == (1, wanted) and out.exists() == made


def test_stopped_before_anything_is_saved(folder, monkeypatch, capsys):
    ended = TrainingResult(RunFolder(folder / "run"), "asked", 0, 1.0, Best("loss", 1))
    monkeypatch.setattr("regard.cli.train.train_translator", lambda *_, **options: ended)
    _, said, _ = run(monkeypatch, capsys, folder / "config.toml")
    assert said.endswith("nothing is saved yet: begin again\n") and "--resume" not in said


def test_a_place_that_cannot_be_written_is_one_line(folder, monkeypatch, capsys):
    out = folder / "train.tsv" / "run"
    code, _, told = run(monkeypatch, capsys, folder / "config.toml", "--out", out)
    assert code == 1 and told == f"regard: {out} cannot be made a folder: Not a directory\n"


def test_a_disk_that_fails_anywhere_is_one_line(folder, monkeypatch, capsys):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("regard.cli.train.train_translator", full)
    code, _, told = run(monkeypatch, capsys, folder / "config.toml")
    assert code == 1 and told == "regard: [Errno 28] No space left on device: 'somewhere'\n"


def test_my_own_files_are_not_overwritten_by_resuming(folder, monkeypatch, capsys):
    (folder / "log.csv").write_text("mine")
    code, _, told = run(monkeypatch, capsys, folder / "config.toml", "--out", folder, "--resume")
    assert (
        code == 1 and "has no run to resume: there is no last.safetensors, but config.toml" in told
    )
    assert (folder / "config.toml").read_text() == CONFIG
    assert (folder / "log.csv").read_text() == "mine"


def test_a_folder_of_a_run_is_told_from_its_translator(folder, monkeypatch, capsys):
    out = folder / "run"
    assert run(monkeypatch, capsys, folder / "config.toml", "--out", out)[0] == 0
    for path, what in ((out, "a folder"), (out / "last.safetensors", "the saved state")):
        monkeypatch.setattr(sys, "argv", ["regard", "serve", "--translator", str(path)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr().err.replace("\n", "")
        assert ended.value.code == 1 and f"{path} is {what}" in told
        assert told.endswith(f"there is one in {out / 'best.safetensors'}")


def test_sigterm_saves_and_ends_cleanly(folder):
    out = folder / "run"
    command = [
        sys.executable, "-m", "regard", "train", str(folder / "config.toml"), "--out", str(out),
        "--set", "training.epochs=100000",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as running:
        _wait_for(out / "log.csv", running)
        running.send_signal(signal.SIGTERM)
        said, told = running.communicate(timeout=60)
    assert running.returncode == 0, told
    assert "stopped by a signal (Ctrl-C or SIGTERM): " in said
    assert f"continue: regard train --resume --out {out}\n" in said
    assert (out / "last.safetensors").exists() and "Traceback" not in told


def _wait_for(log: Path, running: subprocess.Popen) -> None:
    end = time.monotonic() + 90
    while running.poll() is None and time.monotonic() < end:
        if log.exists() and len(log.read_text().splitlines()) > 5:
            return
        time.sleep(0.1)
    raise AssertionError("no steps were made")


NOW = TrainingProgress(
    step=5,
    steps=10,
    share=0.5,
    epoch=0,
    loss=2.5,
    tokens_per_second=1234.5,
    seconds_left=3725.0,
)


def test_lines_come_a_while_apart(capsys):
    lines = Lines()
    lines.stepped(NOW)
    assert capsys.readouterr().err == ""
    lines.reported -= 1000
    lines.stepped(NOW)
    told = capsys.readouterr().err
    assert (
        told == "step 5 of 10  epoch 1  training loss 2.500  1,234 tokens/s  ends in 1 h 02 min\n"
    )


def test_an_unknown_number_of_steps_is_left_out(capsys):
    lines = Lines()
    lines.reported -= 1000
    lines.stepped(replace(NOW, steps=None))
    assert capsys.readouterr().err.startswith("step 5  epoch 1  training loss 2.500")


def test_the_bar_shows_the_same():
    from rich.console import Console

    console = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    bar = Bar(console)
    bar.stepped(NOW)
    bar.validated(5, Validation(1.5, 0.25, 30.0, 50.0), best=True)
    bar.done()
    shown = console.export_text()
    assert "step 5 of 10" in shown and "loss 2.500" in shown and "ends in 1 h 02 min" in shown
    assert "validation loss 1.5000, 25.0% of tokens right  greedy BLEU 30.00  chrF 50.00" in shown


def test_durations():
    assert [_duration(s) for s in (0.0, 59.6, 3600.0, 7384.0)] == [
        "0 min 00 s", "1 min 00 s", "1 h 00 min", "2 h 03 min"
    ]  # fmt: skip
