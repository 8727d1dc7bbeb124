"""`regard collect`: from a file to results; resuming; two processes; errors in one line."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from test_report_command import Reader

import regard
from regard.cli import main
from regard.cli.collect import EXAMPLE
from regard.corpus import load
from regard.errors import RegardError

CONFIG = """
model = "own_reader:load"
[corpus]
files = ["part-*.jsonl"]
batch_size = 2
shard_size = 2
[statistics]
figures = {}
sharpness = { bins = 64 }
"""
MODULE = """
from test_report_command import Reader
import regard
from regard.corpus import Mean

def load():
    return Reader()

def many():
    return Reader(4)

class First(regard.Statistic):
    def __init__(self, scale=1.0):
        self.scale = scale
    def asks(self, batch):
        return {"rows": regard.Entropy()}
    def start(self):
        return {"mean": Mean()}
    def update(self, parts, attention):
        parts["mean"].add(self.scale * attention.answers["rows"], attention.rows)
"""
TEXTS = [[1, 2, 3, 1, 2], [4, 5, 6, 4], [7, 8, 9, 3, 2, 1], [2, 2, 3], [9, 8, 7, 9]]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rows = [json.dumps({"input_ids": tokens}) + "\n" for tokens in TEXTS]
    (tmp_path / "part-0.jsonl").write_text("".join(rows[:3]))
    (tmp_path / "part-1.jsonl").write_text("".join(rows[3:]))
    (tmp_path / "own_reader.py").write_text(MODULE)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_reader", raising=False)
    return tmp_path


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["regard", "collect", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr()


def test_a_run_is_that_of_collect(folder, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "run.toml")
    assert code == 0, said.err
    assert "5 documents, 22 tokens, 1 attentions" in said.out and "2 heads: " in said.out
    assert "next: regard report runs/run --model own_reader:load" in said.out
    statistics = [regard.corpus.Figures(), regard.corpus.Sharpness(64)]
    corpus = regard.corpus.Corpus(TEXTS, batch_size=2, shard_size=2)
    assert load("runs/run").state.equals(regard.collect(Reader(), corpus, statistics).state)
    saved = tomllib.loads((folder / "runs/run/collect.toml").read_text())
    assert saved["model"] == "own_reader:load" and saved["statistics"]["sharpness"]["bins"] == 64


def test_settings_statistics_of_ones_own_and_json(folder, monkeypatch, capsys):
    code, said = run(
        *(monkeypatch, capsys, "run.toml", "--out", "other", "--json"),
        *(
            "--set",
            "statistics.first.scale=2.0",
            "--set",
            "statistics.first.class=own_reader:First",
        ),
        *("--set", "statistics.counts=regard:Histogram", "--set", "corpus.max_length=4"),
    )
    assert code == 0, said.err
    told = json.loads(said.out)
    assert told["documents"] == 5 and told["cut"] == 2 and told["out"] == "other"
    assert told["statistics"] == ["figures", "sharpness", "first", "counts"]
    from own_reader import First

    own = {"first": First(scale=2.0), "counts": regard.corpus.Average(regard.Histogram())}
    found = load("other", own)
    site = found.sites[0]
    entropy = found["sharpness"][site].entropy.mean
    torch.testing.assert_close(found["first"][site].mean, 2 * entropy)


def test_a_run_with_statistics_of_ones_own_has_a_report(folder, monkeypatch, capsys):
    own = ["--set", 'statistics.words={class="own_reader:First", scale=2.0}']
    own += ["--set", 'statistics.histogram="regard:Histogram"']
    code, said = run(monkeypatch, capsys, "run.toml", *own)
    assert code == 0, said
    monkeypatch.setattr(sys, "argv", ["regard", "report", "runs/run", "-o", "page.html"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr()
    assert (folder / "page.html").exists()


def test_a_run_continues(folder, monkeypatch, capsys):
    run(monkeypatch, capsys, "run.toml")
    code, said = run(monkeypatch, capsys, "run.toml")
    assert code == 1 and "runs/run has a run: continue it with resume=True (--resume)" in said.err
    (folder / "runs/run/results.safetensors").unlink()
    (folder / "runs/run/shards/1.safetensors").unlink()
    assert run(monkeypatch, capsys, "run.toml", "--resume")[0] == 0
    assert load("runs/run").examples == 5


def test_a_stop_says_how_to_go_on(folder, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(regard, "collect", stopped)
    code, said = run(monkeypatch, capsys, "run.toml", "--set", "corpus.batch_size=1")
    assert code == 130
    command = "regard collect run.toml --set corpus.batch_size=1 --resume"
    assert f"stopped: 0 shards are in runs/run; continue with: {command}" in said.err


def test_the_example_is_a_configuration(folder, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "--example")
    assert code == 0 and said.out == EXAMPLE
    (folder / "example.toml").write_text(EXAMPLE)
    code, said = run(monkeypatch, capsys, "example.toml")
    assert code == 0, said.err
    assert "minilm: 4 documents" in said.out and (folder / "minilm-run/manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "there is no configuration file: name one; regard collect --example prints one"),
        (["none.toml"], "none.toml cannot be read: No such file or directory"),
        (["run.toml", "--set", "modell=minilm"], "there is no setting modell; did you mean model?"),
        (
            ["run.toml", "--set", "corpus.batchsize=2"],
            "there is no setting corpus.batchsize; did you mean corpus.batch_size?",
        ),
        (["run.toml", "--set", "corpus.batch_size=0"], "batch_size=0, expected a whole number"),
        (["run.toml", "--set", "corpus.files=x-*.txt"], "corpus.files: no file is named "),
        (["run.toml", "--set", "corpus.files=x.txt"], "corpus.files: there is no file "),
        (["run.toml", "--set", 'corpus.texts=["a"]'], "must say what is read, found both"),
        (["run.toml", "--set", "on_error=skipp"], "did you mean 'skip'?"),
        (["run.toml", "--set", "model=nobody"], "--model 'nobody': expected minilm"),
        (["run.toml", "--set", "model=own_reader:lod"], "own_reader has no function 'lod'"),
        (["run.toml", "--engine", "rai"], "engine='rai', expected 'auto', 'local'"),
        (["run.toml", "--set", "ray.workers=2"], "ray is set, which has no effect while engine is"),
        (
            ["run.toml", "--set", "statistics.sharpnes={}"],
            "statistics.sharpnes: there is no statistic 'sharpnes'; did you mean sharpness?",
        ),
        (
            ["run.toml", "--set", "statistics.co_attention={}"],
            "statistics.co_attention needs categories, as co_attention = { categories = … }",
        ),
        (
            ["run.toml", "--set", "statistics.sharpness.bin=3"],
            "there is no setting statistics.sharpness.bin; did you mean statistics.sharpness.bins?",
        ),
        (["run.toml", "--set", "statistics.sharpness.bins=0"], "Sharpness: bins=0, expected"),
        (["run.toml", "--set", "statistics.figures=3"], "statistics.figures must be a table"),
        (["run.toml", "--set", "statistics.average={}"], 'histogram = "regard:Histogram"'),
    ],
)
def test_errors(folder, monkeypatch, capsys, arguments, error):
    code, said = run(monkeypatch, capsys, *arguments)
    assert code == 1 and error in said.err
    assert not (folder / "runs/run/results.safetensors").exists()


def test_a_file_that_is_no_toml(folder, monkeypatch, capsys):
    (folder / "run.toml").write_text("resume = True\n")
    code, said = run(monkeypatch, capsys, "run.toml")
    assert code == 1 and "run.toml is not TOML" in said.err and "TOML writes true" in said.err


def test_two_processes(folder):
    """The same numbers as one process, by torchrun as the help says."""
    here = Path(__file__).parent
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", "0", "-m", "regard", "collect"]
    ended = subprocess.run(
        [*command, "run.toml", "--json"], env=settings, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["documents"] == 5
    corpus = regard.corpus.Corpus(TEXTS, batch_size=2, shard_size=2)
    statistics = [regard.corpus.Figures(), regard.corpus.Sharpness(64)]
    assert load("runs/run").state.equals(regard.collect(Reader(), corpus, statistics).state)


def test_several_files_are_one_corpus(folder):
    paths = [folder / "part-0.jsonl", folder / "part-1.jsonl"]
    corpus = regard.corpus.Corpus(paths, batch_size=2)
    assert sum(len(batch) for batch in corpus) == 5 and corpus.source.size is None
    with pytest.raises(RegardError, match="cannot be read"):
        list(regard.corpus.Corpus([folder / "none.txt"]))
