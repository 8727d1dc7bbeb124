"""`kill -9` at any moment breaks no file and costs at most the steps since the last saving."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_training import toy_table

from regard.tables import write_toml
from regard.translate.checkpoint import load_checkpoint
from regard.translate.training import read_log
from regard.translate.training.resuming import load_state

SCRIPT = Path(__file__).with_name("killed_often.py")


def losses(folder):
    return [
        (row["step"], row["kind"], row["loss"], row["tokens"])
        for row in read_log(folder / "log.csv")
    ]


def died(folder, table, *arguments):
    """How often the run died."""
    (folder / "config.toml").write_text(write_toml(table))
    command = [sys.executable, str(SCRIPT), str(folder), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


def check(folder, seed, deaths, buffer=0):
    table = toy_table(folder / "data")
    table["data"]["buffer"] = buffer
    table["training"] |= {"epochs": 4, "save_every": 2}
    assert died(folder, table, seed, deaths) >= deaths / 2

    assert losses(folder / "killed") == losses(folder / "whole")
    one, other = (load_state(folder / run / "last.safetensors") for run in ("whole", "killed"))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    for name in ("best", "average"):
        pair = [
            load_checkpoint(folder / run / f"{name}.safetensors") for run in ("whole", "killed")
        ]
        states = [checkpoint.model.state_dict() for checkpoint in pair]
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    for run in ("whole", "killed"):
        assert not list((folder / run).rglob("*.part"))
        assert len(list((folder / run / "kept").iterdir())) == 2


@pytest.mark.parametrize("buffer", [0, 60], ids=["in-memory", "streamed"])
def test_a_run_that_is_killed_again_and_again_is_the_unbroken_run(tmp_path, buffer):
    check(tmp_path, seed=0, deaths=5, buffer=buffer)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_deaths(tmp_path, seed):
    check(tmp_path, seed=seed, deaths=25)


@pytest.mark.slow
def test_a_run_may_die_whenever_a_file_gets_its_name(tmp_path):
    """The first saving is one of these moments: there is no state then, but half of one."""
    table = toy_table(tmp_path / "data", 30)
    table["training"] |= {"epochs": 1, "steps": 2, "save_every": 1}
    table["search"] = {"beam": 1, "longest": 4}
    assert died(tmp_path, table) >= 12
    expected = losses(tmp_path / "whole")
    for out in tmp_path.glob("*-*"):
        assert losses(out) == expected
        assert not list(out.rglob("*.part"))
        assert len(list((out / "kept").iterdir())) == 1
