"""Runs that were killed, or are not what they were, and what is in their folder."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from corpus_models import Reader, documents_of_a_run, run, texts

import regard
from regard.corpus import Corpus, Drift, Figures, Mean, Sharpness, Statistic, load
from regard.errors import RegardError

SCRIPT = Path(__file__).with_name("killed_run.py")


def killed_in_the_middle(folder):
    """A process that has saved two of four shards when it is killed."""
    process = subprocess.Popen([sys.executable, SCRIPT, folder, "25"])
    try:
        for _ in range(6000):
            if (folder / "shards" / "1.safetensors").exists():
                break
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def test_a_killed_run_continues_with_the_same_numbers(tmp_path):
    killed = tmp_path / "killed"
    killed_in_the_middle(killed)
    assert sorted(path.name for path in (killed / "shards").glob("*.safetensors")) == [
        "0.safetensors",
        "1.safetensors",
    ]
    before = load(killed)
    assert not before.complete and before.examples == 20
    times = {path: path.stat().st_mtime_ns for path in (killed / "shards").iterdir()}

    resumed, whole = run(killed, resume=True), run(tmp_path / "whole")
    assert resumed.complete and resumed.examples == 40
    assert resumed.state.equals(whole.state)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())  # not done again


@pytest.fixture
def folder(tmp_path):
    run(tmp_path / "run")
    return tmp_path / "run"


def test_results_are_the_same_in_memory_and_in_a_folder(folder):
    in_memory = run(None)
    assert in_memory.state.equals(load(folder).state)
    assert run(folder, resume=True).state.equals(in_memory.state)


def test_the_manifest_lists_every_file_with_its_checksum(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    shards = [f"shards/{number}.safetensors" for number in range(4)]
    assert list(manifest["files"]) == [*shards, "results.safetensors"]
    assert manifest["settings"]["corpus"]["batch_size"] == 4
    assert manifest["settings"]["model"]["class"] == "Reader"
    assert (folder / "failures.jsonl").read_text() == ""


def test_a_shard_that_is_gone_is_done_again(folder):
    before = load(folder).state
    (folder / "shards" / "2.safetensors").unlink()
    assert run(folder, resume=True).state.equals(before)


def flip_a_byte(path):
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)


def test_damaged_files_are_noticed(folder):
    flip_a_byte(folder / "results.safetensors")
    with pytest.raises(
        RegardError, match=r"results.safetensors is not the file that manifest.json"
    ):
        load(folder)
    flip_a_byte(folder / "shards" / "1.safetensors")
    with pytest.raises(RegardError, match=r"shards/1.safetensors is damaged"):
        run(folder, resume=True)


def test_a_shard_that_was_cut_is_named_with_what_to_do(folder):
    before = load(folder).state
    path = folder / "shards" / "1.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    text = r"1.safetensors is not a safetensors file.*; if you delete it, resume=True collects its"
    with pytest.raises(RegardError, match=text):
        run(folder, resume=True)
    path.unlink()
    (folder / "shards" / "copy of 2.safetensors").write_bytes(b"")  # none of ours
    assert run(folder, resume=True).state.equals(before)


def test_a_run_that_has_no_shard_yet_continues(folder):
    before = load(folder).state
    for path in [*folder.glob("shards/*"), folder / "results.safetensors"]:
        path.unlink()
    (folder / "shards").rmdir()
    (folder / "failures.jsonl").unlink()
    assert load(folder).examples == 0
    assert run(folder, resume=True).state.equals(before)


def test_weights_behind_a_function_must_be_the_same(tmp_path):
    run(tmp_path, lambda: Reader())
    before = load(tmp_path).state
    (tmp_path / "shards" / "2.safetensors").unlink()
    text = r"was collected with other weights of the model, whose digest is '\w+'; those that"
    with pytest.raises(RegardError, match=text):
        run(tmp_path, lambda: Reader(seed=5), resume=True)
    assert run(tmp_path, lambda: Reader(), resume=True).state.equals(before)


def test_weights_behind_a_method_must_be_the_same(tmp_path):
    run(tmp_path, Reader().forward)
    with pytest.raises(RegardError, match=r"was collected with model.digest='\w+', this run has"):
        run(tmp_path, Reader(seed=5).forward, resume=True)


def collected_again(folder, model=None, documents=None, statistics=None, **options):
    options = {"batch_size": 4, "shard_size": 10} | options
    corpus = Corpus(documents or documents_of_a_run(), **options)
    return regard.collect(model or Reader(), corpus, statistics, out=folder, resume=True)


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({"model": Reader(seed=5)}, r"collected with model.digest='\w+', this run has '\w+'"),
        ({"batch_size": 5}, "collected with corpus.batch_size=4, this run has 5: choose another"),
        ({"statistics": [Figures()]}, "collected with statistics.sharpness.class='Sharpness'"),
        (
            {"documents": documents_of_a_run()[:20]},
            "2.safetensors was .*: the corpus had more",
        ),
        ({"documents": texts(40)}, "0.safetensors was collected from other documents: 0 to 9 of"),
    ],
    ids=["model", "batches", "statistics", "fewer", "documents"],
)
def test_another_run_is_refused(folder, again, text):
    with pytest.raises(RegardError, match=text):
        collected_again(folder, **again)


def test_a_folder_is_not_overwritten(folder, tmp_path):
    with pytest.raises(RegardError, match="has a run: continue it with resume=True"):
        run(folder)
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("")
    with pytest.raises(RegardError, match=r"has no run, but thesis.tex; choose an empty folder"):
        run(strange, resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(RegardError, match="file is a file, expected a folder or nothing"):
        run(tmp_path / "file")
    with pytest.raises(RegardError, match=r"resume=True needs out="):
        run(None, resume=True)


def test_what_is_no_run_is_not_loaded(tmp_path):
    with pytest.raises(RegardError, match=r"has no manifest.json: nothing was collected there"):
        load(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(RegardError, match=r"is not the manifest of a run of regard.collect"):
        load(tmp_path)


class Own(Statistic):
    """The entropy of rows, as somebody might write it."""

    def asks(self, batch):
        return {"entropy": regard.Entropy()}

    def start(self):
        return {"entropy": Mean()}

    def update(self, parts, attention):
        parts["entropy"].add(attention.answers["entropy"], attention.rows)


def test_a_statistic_of_ones_own_is_passed_to_load(tmp_path):
    found = regard.collect(Reader(), texts(5), {"mine": Own()}, out=tmp_path / "run")
    with pytest.raises(RegardError, match=r"'mine' is a Own, which a file cannot make; pass it"):
        load(tmp_path / "run")
    again = load(tmp_path / "run", {"mine": Own()})
    assert again.state.equals(found.state)
    assert again["mine"]["layers.0"].number.tolist() == found["mine"]["layers.0"].number.tolist()


def test_settings_of_statistics_are_loaded(tmp_path):
    regard.collect(Reader(), texts(5), [Sharpness(bins=7)], out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again["sharpness"]["layers.1"].entropies.counts.shape == (3, 7)
    with pytest.raises(
        RegardError,
        match=r"'sharpness' was collected as Sharpness\(bins=7\), the one that was passed is "
        r"Sharpness\(bins=8\)",
    ):
        load(tmp_path / "run", [Sharpness(bins=8)])
    with pytest.raises(RegardError, match=r"run has no 'figures', there are sharpness"):
        load(tmp_path / "run", [Figures()])


def test_averages_and_drifts_are_loaded_without_reducers_and_models(tmp_path):
    statistics = [regard.Histogram(bins=4), Drift(Reader(seed=1))]
    found = regard.collect(Reader(), texts(5), statistics, out=tmp_path / "run")
    again = load(tmp_path / "run")
    assert again.state.equals(found.state)
    assert torch.equal(again["drift"]["layers.0"].mean, found["drift"]["layers.0"].mean)
    assert again["histogram"]["layers.1"].mean.shape == (3, 4)
