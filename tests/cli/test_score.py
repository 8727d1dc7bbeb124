"""`regard score` on small files."""

import json

import pytest
import typer
from typer.testing import CliRunner

from regard.cli.score import score
from regard.errors import RegardError
from regard.translate import evaluation

RIGHT = ["The cat sat on the mat .", "A dog saw two birds in the tree today .", "Yes ."]
GOOD = ["The cat sat on the mat .", "A dog saw two birds in a tree today .", "Yes ."]
BAD = ["A cat on mat .", "The dog saw birds .", "Yes ."]


@pytest.fixture
def files(tmp_path):
    for name, texts in (("good", GOOD), ("bad", BAD), ("right", RIGHT), ("source", ["x y"] * 3)):
        (tmp_path / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    return tmp_path


def run(*arguments):
    """The command alone; an error of regard comes through."""
    app = typer.Typer()
    app.command()(score)
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def cells(text):
    """The rows of the tables by their first cell; one that is empty belongs to the row above."""
    rows, name = {}, ""
    for line in text.splitlines():
        if line.startswith("|"):
            first, *others = [cell.strip() for cell in line.strip("|").split("|")]
            name = first or name
            rows.setdefault(name, []).append(others)
    return rows


def test_scores_have_their_signatures(files):
    result = run(files / "good", files / "right")
    expected = evaluation.score(GOOD, RIGHT)
    assert result.exit_code == 0
    assert f"BLEU {expected.bleu.value:.2f}  {expected.bleu.signature}" in result.stdout
    assert f"chrF2 {expected.chrf.value:.2f}  {expected.chrf.signature}" in result.stdout
    assert "by words of the reference" in result.stdout and "10 to 19" in result.stdout
    assert result.stdout.isascii()


def test_two_systems_side_by_side(files):
    result = run(files / "bad", files / "right", "--other", files / "good", "--resamples", 50)
    assert "two systems, with 95 % intervals" in result.stdout
    rows = cells(result.stdout)
    compared = evaluation.compare(BAD, GOOD, RIGHT, evaluation.EvaluationOptions(resamples=50))
    for name, systems in (
        ("bad", [c.first for c in compared]),
        ("good", [c.second for c in compared]),
    ):
        assert rows[name][0] == [
            f"{one.value:.2f} ({max(0, one.mean - one.interval):.2f} to "
            f"{min(100, one.mean + one.interval):.2f})"
            for one in systems
        ]
    assert rows["difference"][0] == [f"{one.difference:+.2f}" for one in compared]
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if line[:1] in "|+")
    assert "line 2: chrF" in result.stdout and "The dog saw birds ." in result.stdout
    assert "line 3" not in result.stdout  # both say the same there


def test_both_systems_by_length(files):
    result = run(files / "bad", files / "right", "--other", files / "good", "--resamples", 5)
    rows = cells(result.stdout)
    for texts, found in zip((BAD, GOOD), rows["0 to 9"]):
        bucket = evaluation.buckets(texts, RIGHT)[0]
        assert found[-2:] == [f"{bucket.bleu.value:.2f}", f"{bucket.chrf.value:.2f}"]
    assert [found[:2] for found in rows["0 to 9"]] == [["2", "bad"], ["", "good"]]


def test_files_of_the_same_name_have_their_folders(files):
    (files / "two").mkdir()
    same = files / "two" / "bad"
    same.write_text((files / "good").read_text())
    result = run(files / "bad", files / "right", "--other", same, "--resamples", 5)
    shown = "".join(result.stdout.split())
    assert f"{files / 'bad'}A cat on mat .".replace(" ", "") in shown
    assert f"{same}The cat sat on the mat .".replace(" ", "") in shown


def test_the_least_p_is_a_bound(files):
    for name, text in (("none", "x y z w ."), ("whole", "The cat sat on the mat .")):
        (files / name).write_text(f"{text}\n" * 20)
    arguments = (files / "none", files / "whole", "--other", files / "whole")
    for draws, bound in ((100, "<= 0.0100"), (300, "<= 0.0034")):  # 1 / 101 and 1 / 301
        rows = cells(run(*arguments, "--resamples", draws).stdout)
        assert rows["two-sided p"] == [[bound, bound]]
    rows = cells(run(files / "good", files / "right", "--other", files / "good").stdout)
    assert rows["two-sided p"] == [["1.000", "1.000"]]


def test_lengths_at_which_bleu_counts_nothing_have_a_dash(files):
    result = run(files / "right", files / "right", "--edges", "3,5")
    rows = cells(result.stdout)
    assert rows["0 to 2"] == [["1", "-", "100.00"]]
    assert rows["5 and more"] == [["2", "100.00", "100.00"]]
    assert "3 to 4" not in rows, "no sentence has such a length"
    assert "- no reference there has the four words that BLEU counts" in result.stdout
    assert "four words" not in run(files / "right", files / "right").stdout
    found = json.loads(run(files / "right", files / "right", "--edges", "3", "--json").stdout)
    assert found["buckets"][0]["bleu"] is None and found["buckets"][0]["chrf"]["value"] == 100


def test_json_is_all_of_it(files):
    arguments = [files / "bad", files / "right", "--other", files / "good", "--json"]
    found = json.loads(run(*arguments, "--source", files / "source", "--edges", "3").stdout)
    assert found["scores"]["bleu"]["value"] == evaluation.score(BAD, RIGHT).bleu.value
    assert [bucket["sentences"] for bucket in found["buckets"]] == [3, 0]
    assert [bucket["sentences"] for bucket in found["other_buckets"]] == [3, 0]
    assert [one["name"] for one in found["comparison"]] == ["BLEU", "chrF2"]
    assert 0 < found["comparison"][0]["two_sided_p"] <= 1
    assert {one["number"] for one in found["differing"]} == {0, 1}


def test_options_reach_the_counting(files):
    found = run(files / "good", files / "right", "--lower", "--tokenizer", "none", "--edges", "")
    assert "case:lc" in found.stdout and "tok:none" in found.stdout
    assert "by words" not in found.stdout


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["good", "short"], "good has 3 lines, but .*short has 1; expected as many in each"),
        (["empty", "empty"], "empty has no lines: nothing can be scored"),
        (["good", "nowhere"], "there is no file .*nowhere"),
        (["good", "right", "--edges", "a"], "--edges 'a', expected rising numbers above 0"),
        (["good", "right", "--edges", "3,1"], "--edges '3,1', expected rising numbers above 0"),
        (["good", "right", "--tokenizer", "moses"], "--tokenizer moses, expected one of 13a"),
        (["good", "right", "--other", "short"], "good has 3 lines, but .*short has 1"),
    ],
)
def test_errors_name_the_file(files, options, message):
    (files / "short").write_text("Yes .\n")
    (files / "empty").write_text("")
    named = {"good", "right", "short", "empty", "nowhere"}
    with pytest.raises(RegardError, match=message):
        run(*(files / one if one in named else one for one in options))


@pytest.mark.parametrize(("option", "value"), [("--resamples", 10), ("--examples", 3)])
def test_what_needs_another_system_says_so(files, option, value):
    with pytest.raises(RegardError, match=f"{option} {value} has no effect without --other"):
        run(files / "good", files / "right", option, value)


@pytest.mark.parametrize(("option", "value"), [("--resamples", 0), ("--examples", -1)])
def test_numbers_out_of_range_are_refused(files, option, value):
    result = run(files / "good", files / "right", "--other", files / "bad", option, value)
    assert result.exit_code == 2 and option in result.stderr
