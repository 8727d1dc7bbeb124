"""`regard look` on the real pretrained encoder."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from regard.cli import minilm
from regard.cli.minilm import MiniLM

COMMAND = [sys.executable, "-c", "from regard.cli import main; main()", "look"]


def look(folder, *options):
    return subprocess.run([*COMMAND, *options], cwd=folder, capture_output=True, text=True)


def test_the_worked_example_shows_a_table_and_draws_a_heatmap(tmp_path):
    done = look(tmp_path)
    assert done.returncode == 0, done.stderr
    row = next(line for line in done.stdout.splitlines() if "│ see" in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[4] == "100", "head 2 of layer 0 attends to the previous token"
    assert (tmp_path / "look.png").stat().st_size > 10_000


def test_another_text_word_head_and_format(tmp_path):
    done = look(tmp_path, "The Cat sat", "--word", "Cat", "--head", "2", "--out", "cat.svg")
    assert done.returncode == 0, done.stderr
    assert "cat" in done.stdout
    assert "<svg" in (tmp_path / "cat.svg").read_text()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--word", "dog"], "'dog' is not among the tokens: [CLS] see that girl run [SEP]"),
        (["--head", "12"], "--head 12 is not from 0 to 11"),
        (["--out", "x.docx"], "expected .png, .svg, .pdf"),
        (["--out", "no/x.png"], "there is no folder no"),
        ([""], "there is no word in ''"),
    ],
)
def test_a_wrong_option_says_what_would_fit(tmp_path, options, text):
    done = look(tmp_path, *options)
    assert done.returncode == 1
    assert text in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir()), "nothing is half-written"


def test_the_layer_has_the_weights_that_transformers_gives():
    model = MiniLM()
    _, ids = model.tokens("see that girl run")
    folder = Path(minilm._folder())
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        want = theirs(ids, output_attentions=True).attentions[0]
        got = model.attention(0)(model.embed(ids), weights=True).weights
    torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
