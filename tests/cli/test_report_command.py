"""`regard report`: a page of a folder, of two, and what is refused."""

import json
import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard.cli import main

TEXTS = [[1, 2, 3, 1, 2], [4, 5, 6, 4], [7, 8, 9, 3, 2, 1]]


class Reader(nn.Module):
    """One attention over tokens."""

    def __init__(self, heads=2):
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.embedding = heads, nn.Embedding(10, 8)
        self.project = nn.Linear(8, 24)

    def forward(self, input_ids, attention_mask):
        parts = self.project(self.embedding(input_ids)).unflatten(-1, (3, self.heads, -1))
        mask = (attention_mask > 0)[:, None, None]
        return F.scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), attn_mask=mask)


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["regard", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    regard.collect(Reader(), TEXTS, out=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two_readers.py").write_text(
        "from test_report_command import Reader\n"
        "def load(): return Reader()\n"
        "def two(): return Reader(4)\n"
    )
    return tmp_path


def test_a_page_of_a_run(folder, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "run")
    assert code == 0, said
    html = (folder / "report.html").read_text()
    assert "page of every head: report.html" in said
    assert "--model MODEL adds the attention" in said
    assert html.startswith("<!doctype html>") and '"name":"run"' in html
    assert "connect-src 'none'" in html


def test_a_page_of_two_runs(folder, monkeypatch, capsys):
    regard.collect(Reader(), TEXTS[:2], out=folder / "other")
    code, _ = run(monkeypatch, capsys, "run", "other", "-o", "both.html", "--title", "A and B")
    html = (folder / "both.html").read_text()
    assert code == 0 and "<title>A and B</title>" in html
    assert '"name":"run"' in html and '"name":"other"' in html


def test_the_attention_of_a_model_of_ones_own(folder, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "run", "--model", "two_readers:load")
    assert code == 0, said
    manifest = re.search(r'id="manifest">(.*)</script>', (folder / "report.html").read_text())
    (first,) = json.loads(manifest[1])["runs"]
    strongest = regard.corpus.load("run")["strongest_pairs"]
    documents = {heads[0].example.number for each in strongest.values() for heads in each}
    assert {int(key.rpartition("/")[2]) for key in first["scenes"]} == documents


def test_another_model_is_refused(folder, monkeypatch, capsys):
    code, said = run(monkeypatch, capsys, "run", "--model", "two_readers:two")
    assert code == 1 and "expected the model of the run" in said
    assert not (folder / "report.html").exists()


def test_other_heads_are_refused(folder, monkeypatch, capsys):
    regard.collect(Reader(4), TEXTS, out=folder / "other")
    code, said = run(monkeypatch, capsys, "run", "other")
    assert code == 1
    assert "run has 2 heads, other 4 heads: heads can be compared between runs of the same" in said


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nothing"], "nothing has no manifest.json: nothing was collected there"),
        (["run", "-o", "page.pdf"], "page.pdf: ends in '.pdf', expected .html"),
        (["run", "--model", "a", "--model", "b"], "2 --model for 1 runs, expected one for each"),
        (["run", "--model", "nobody"], "--model 'nobody': expected minilm"),
        (["run", "--model", "rxnmapper"], "a corpus cannot use; expected minilm, smollm2"),
        (["run", "--examples", "0"], "--examples"),
    ],
)
def test_errors(folder, monkeypatch, capsys, arguments, error):
    code, said = run(monkeypatch, capsys, *arguments)
    assert code in (1, 2) and error in said.replace("\n", " ")
