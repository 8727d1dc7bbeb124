"""Two real processes of torchrun: the numbers of one, and what is left where a rank dies."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from corpus_models import Reader, digest, run, texts

import regard
from regard.corpus import engines, load
from regard.errors import RegardError

SCRIPT = Path(__file__).with_name("torchrun_run.py")


def launch(folder, *arguments, options=()):
    """Ranks find each other by a file: no process listens on a socket."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", str(folder) + ".rendezvous",
        "--rdzv-conf", "store_type=file", "--rdzv-id", folder.name, "--local-addr", "127.0.0.1",
        *options, str(SCRIPT), str(folder), *arguments,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as running:
        try:
            errors = running.communicate(timeout=300)[1]
        except subprocess.TimeoutExpired:
            running.terminate()  # torchrun ends its processes then; killed, it leaves them behind
            running.communicate(timeout=60)
            raise
    return running.returncode, errors


def answers(folder):
    """What each rank returned, as a checksum."""
    return [folder.with_name(f"{folder.name}-{rank}").read_text() for rank in (0, 1)]


def test_each_rank_returns_what_one_process_does(tmp_path):
    code, errors = launch(tmp_path / "two", "lives")
    assert code == 0, errors[-3000:]
    expected = digest(run(None))
    assert answers(tmp_path / "two") == [expected, expected]
    assert digest(load(tmp_path / "two")) == expected
    names = sorted(path.name for path in (tmp_path / "two").iterdir())
    assert names == ["failures.jsonl", "manifest.json", "results.safetensors", "shards"]


def test_a_rank_that_dies_ends_the_job_and_leaves_its_shards(tmp_path):
    folder = tmp_path / "two"
    code, errors = launch(folder, "dies")
    assert code != 0 and "Signal 9 (SIGKILL)" in errors
    shards = {path: path.stat().st_mtime_ns for path in (folder / "shards").glob("*.safetensors")}
    assert folder / "shards" / "1.safetensors" in shards
    assert folder / "shards" / "3.safetensors" not in shards
    assert not load(folder).complete

    assert digest(run(folder, resume=True)) == digest(run(None))  # in one process
    assert all(path.stat().st_mtime_ns == written for path, written in shards.items())


@pytest.mark.slow
def test_torchrun_may_start_ranks_again(tmp_path):
    code, errors = launch(tmp_path / "two", "dies", options=["--max-restarts", "1"])
    assert code == 0, errors[-3000:]
    expected = digest(run(None))
    assert answers(tmp_path / "two") == [expected, expected]


@pytest.fixture
def first_of_two(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_a_rank_that_is_not_there_is_not_waited_for_without_end(
    tmp_path, first_of_two, monkeypatch
):
    monkeypatch.setattr(engines.torchrun, "START", 0.5)
    text = (
        r"shard 1 is missing, and rank 1 has given no sign of life for 0 s: it has died, or does "
        r"not see .*run; shards that are finished are kept, run again with resume=True"
    )
    with pytest.raises(RegardError, match=text):
        run(tmp_path / "run")
    names = sorted(path.name for path in (tmp_path / "run").rglob("*.safetensors"))
    assert names == ["0.safetensors", "2.safetensors"]
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(RegardError, match=r"there is no .*manifest.json, and rank 0 has given no"):
        run(tmp_path / "other")


ALIVE = """
import sys, time
from pathlib import Path
from regard.corpus.engines import torchrun
torchrun.BEAT, folder = 0.1, Path(sys.argv[1])
while not (folder / "manifest.json").exists():
    time.sleep(0.1)
with torchrun.alive(folder / "rank-1.alive"):
    time.sleep(600)
"""


def test_a_rank_that_falls_silent_is_not_waited_for(tmp_path, first_of_two, monkeypatch):
    monkeypatch.setattr(engines.torchrun, "SILENCE", 1.0)
    folder = tmp_path / "run"
    other = subprocess.Popen([sys.executable, "-c", ALIVE, folder])

    def kill_soon():
        while not (folder / "rank-1.alive").exists() and other.poll() is None:
            time.sleep(0.1)
        time.sleep(1.5)
        other.kill()

    killer = threading.Thread(target=kill_soon)
    killer.start()
    try:
        with pytest.raises(RegardError, match="rank 1 has given no sign of life for 1 s: it has"):
            run(folder)
    finally:
        other.kill()
        other.wait()
        killer.join()


def test_errors_of_the_environment(tmp_path, first_of_two, monkeypatch):
    with pytest.raises(RegardError, match="engine='torchrun' needs out=, a folder that all"):
        regard.collect(Reader(), texts(3))
    alone = regard.collect(Reader(), texts(3), engine="local")
    assert alone.examples == 3
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(RegardError, match="RANK=2, expected 0 to 1"):
        run(tmp_path / "run")
    monkeypatch.delenv("RANK")
    with pytest.raises(RegardError, match="'torchrun' needs RANK, which is 'not set': start the"):
        run(tmp_path / "run", engine="torchrun")
    with pytest.raises(RegardError, match="engine='spark', expected 'auto', 'local', 'torchrun'"):
        run(tmp_path / "run", engine="spark")


def test_a_model_may_be_loaded_by_a_function():
    assert digest(run(None, model=lambda: Reader())) == digest(run(None))
