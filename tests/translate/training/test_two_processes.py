"""Two real processes train one model: every sentence once an epoch, the same parameters on both."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy_training import toy_table

from regard.errors import RegardError
from regard.tables import write_toml
from regard.translate.config import Config
from regard.translate.models.build import build_model
from regard.translate.training import read_log, train
from regard.translate.training.corpus import read_data, train_vocabularies
from regard.translate.training.processes import new_fabric
from regard.translate.training.resuming import seed_all
from regard.translate.training.setup import say_by_frequency
from regard.translate.training.step import Stepper, new_optimiser, plan_epoch

SCRIPT = Path(__file__).with_name("two_processes.py")
EPOCHS = 2
NOTES = ("seen", "drawn")  # what a process writes down besides its parameters


def launch(folder):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-addr", "127.0.0.1", "--master-port", str(port), str(SCRIPT), str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            told = running.communicate(timeout=300)[1]
        except subprocess.TimeoutExpired:
            running.terminate()  # torchrun ends its processes then; killed, it leaves them behind
            running.communicate(timeout=60)
            raise
    assert running.returncode == 0, told[-3000:]


def ended(folder, name):
    return [load_file(folder / f"{name}-{rank}.safetensors") for rank in (0, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    table = toy_table(folder / "data", 151)
    table["model"]["dropout"] = 0.0
    table["training"] |= {
        "epochs": EPOCHS,
        "accumulate": 2,
        "batch_tokens": 90,
        "precision": "64",
        # Unlike Adam, and without a clip, it goes twice as far where the gradient is twice as long.
        "optimiser": {"name": "sgd", "rate": 0.3, "clip": 0.0},
    }
    (folder / "config.toml").write_text(write_toml(table))
    launch(folder)
    return folder


@pytest.fixture
def both(folder):
    return ended(folder, "run")


def test_every_sentence_is_seen_once_an_epoch(both):
    seen = sorted(torch.cat([one["seen"] for one in both]).tolist())
    assert seen == sorted(list(range(151)) * EPOCHS)
    assert len(set(both[0]["seen"].tolist())) < 151


def test_both_end_with_the_same_parameters(both):
    one, other = both
    assert all(torch.equal(one[name], other[name]) for name in one if name not in NOTES)


def test_the_gradient_is_that_of_one_process_with_all_sentences(folder, both):
    """One process that sees what both saw, step by step, in double precision."""
    config = Config.from_file(folder / "config.toml")
    pairs = read_data(config.data)
    vocabularies = train_vocabularies(config.vocabulary, pairs.train)
    examples = vocabularies.examples(pairs.train)
    with torch.random.fork_rng():
        seed_all(config.training.seed)
        model = build_model(
            config.model, len(vocabularies.source), len(vocabularies.target)
        ).double()
    say_by_frequency(model, examples)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimiser = new_optimiser(config.training.optimiser, model)
    stepper = Stepper(new_fabric("64"), model, optimiser, examples, config.training)
    for epoch in range(EPOCHS):
        plans = [plan_epoch(examples, config.training, epoch, rank, 2) for rank in (0, 1)]
        for one, other in zip(*plans):
            assert one.tokens == other.tokens
            step = type(one)(one.batches + other.batches, one.tokens)
            stepper.make(step, config.training.optimiser.rate, 1.0)
    ways = [both[0][str(place)] - first for place, first in enumerate(before)]
    assert max(way.abs().max() for way in ways) > 0.01
    for way, first, parameter in zip(ways, before, stepper.parameters, strict=True):
        torch.testing.assert_close(way, parameter.detach() - first, atol=1e-12, rtol=1e-9)


def test_the_losses_are_near_those_of_one_process(folder):
    alone = Config.from_file(folder / "config.toml", ["training.batch_tokens=180"])
    train(alone, folder / "alone")
    last = [
        [float(row["loss"]) for row in read_log(folder / run / "log.csv") if row["kind"] == "valid"]
        for run in ("run", "alone")
    ]
    assert last[0] == pytest.approx(last[1], rel=0.01)


@pytest.mark.parametrize("kind", ["", "dropped-"])
def test_two_processes_resume_exactly(folder, kind):
    for one, other in zip(ended(folder, f"{kind}run"), ended(folder, f"{kind}parts")):
        assert all(torch.equal(one[name], other[name]) for name in one if name not in NOTES)
        assert torch.equal(one["drawn"][-len(other["drawn"]) :], other["drawn"])
        assert one["seen"].tolist()[-len(other["seen"]) :] == other["seen"].tolist()
        assert len(other["seen"]) < len(one["seen"])


@pytest.mark.parametrize("name", ["dropped-run", "dropped-parts"])
def test_each_process_draws_its_own_dropout(folder, name):
    """At no step has one what another has, or had at another step: before a run is resumed and
    after it; and both still end with the same parameters."""
    one, other = ended(folder, name)
    draws = torch.cat([one["drawn"], other["drawn"]])
    assert len(draws) >= 6 and len(draws.unique(dim=0)) == len(draws)
    assert all(torch.equal(one[key], other[key]) for key in one if key not in NOTES)


def test_a_run_of_two_processes_is_not_resumed_by_one(folder):
    with pytest.raises(RegardError, match="began with 2 processes and cannot be resumed with 1"):
        train(Config.from_file(folder / "config.toml"), folder / "run", resume=True)
