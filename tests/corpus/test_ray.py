"""Ray on this machine and on a cluster of two nodes: workers die, nodes are lost, documents
fail. All of it in processes of its own, which tests/corpus/ray_run.py starts and stops."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_models import Reader, digest, run, texts

import regard
from regard.corpus import RayOptions
from regard.errors import MissingExtraError, RegardError

SCRIPT = Path(__file__).with_name("ray_run.py")


def outcome(folder, *parts):
    environment = {
        **os.environ,
        "HOME": str(folder),  # Ray keeps a token there
        "OMP_NUM_THREADS": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # 127.0.0.1 is not made the outer address
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else workers starve on a busy machine
    }
    command = [sys.executable, SCRIPT, folder / "outcome.json", *parts]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads((folder / "outcome.json").read_text())


@pytest.fixture(scope="module")
def happened(tmp_path_factory):
    pytest.importorskip("ray")
    return outcome(tmp_path_factory.mktemp("ray"), "machine", "disturbed", "poisoned")


def test_ray_of_this_machine_gives_the_same_and_leaves_nothing(happened):
    machine = happened["machine"]
    assert machine["same"]
    assert machine["left"] == []
    assert machine["sockets"] > 0 and machine["elsewhere"] == []  # loopback alone


def test_a_killed_worker_and_a_lost_node_change_no_number(happened):
    disturbed = happened["disturbed"]
    assert disturbed["killed"]
    assert disturbed["same"] and disturbed["loaded"]
    assert disturbed["documents"] == 40
    assert 16 <= disturbed["passes"] <= 16 + 8  # shards under way are done again, no others
    assert disturbed["sockets"] > 0 and disturbed["elsewhere"] == []
    assert happened["left"] == []


def test_a_document_that_fails_is_named_or_left_out(happened):
    poisoned = happened["poisoned"]
    assert poisoned["raised"].startswith("document 17: ValueError: a poisoned token; shards that")
    assert poisoned["skipped"] and poisoned["failures"] == [17]


def test_a_shard_that_kills_its_workers_ends_with_its_name(happened):
    poisoned = happened["poisoned"]
    assert poisoned["killed"] == (
        "collect: shard 7, documents 35 to 39: its worker died 3 times while it read them; shards "
        "that are finished are kept in out=, run again with resume=True"
    )
    assert 1 <= poisoned["kept"] <= 7


@pytest.mark.slow
def test_a_dataset_of_ray_needs_ids(tmp_path):
    pytest.importorskip("ray")
    dataset = outcome(tmp_path, "dataset")["dataset"]
    assert dataset["same"] and dataset["iterator"]
    assert dataset["twice"] == "corpus: the dataset of Ray has the id 3 twice"
    assert dataset["gap"] == "corpus: the dataset of Ray has no id 0, expected 0 to 38, each once"
    assert dataset["nameless"].startswith(
        "corpus: the dataset of Ray has the columns text, expected 'id' (0, 1, 2, …, as a dataset"
    )


# -- without Ray


def test_ray_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"'ray'.*pip install 'regard\[ray\]'"):
        regard.collect(Reader(), texts(3), engine="ray")


def test_errors_of_options():
    with pytest.raises(RegardError, match="workers=0, expected a number from 1"):
        RayOptions(workers=0)
    with pytest.raises(RegardError, match="cpus=0, expected a positive number"):
        RayOptions(cpus=0)
    with pytest.raises(RegardError, match="with gpus= the model is loaded by each worker onto its"):
        regard.collect(Reader(), texts(3), engine=RayOptions(gpus=1))


def test_a_run_that_is_complete_needs_no_ray(tmp_path, monkeypatch):
    before = run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "ray", None)
    again = run(tmp_path / "run", resume=True, engine="ray")
    assert digest(again) == digest(before)
