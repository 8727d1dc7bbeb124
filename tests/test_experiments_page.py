"""The page of experiments: its figures are those that the scripts printed, in results/."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "experiments/mechanisms"
PAGE = (ROOT / "docs/gallery/experiments.md").read_text(encoding="utf-8")


def log(name):
    """The lines of a log."""
    return (SCRIPTS / "results" / name).read_text(encoding="utf-8").splitlines()


def rows():
    """The cells of each experiment, by the name of its log."""
    table = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return {re.fullmatch("`(.*)`", cells[3])[1]: cells for cells in table[1:]}


def ntm_copy(lines):
    end = re.search(r"converged at (\d+) sequences; .* 20: (.+), 40: (.+), 80: (.+)", lines[-1])
    return end.groups()


def ntm_copy_finite(lines):
    seeds = [line for line in lines if line.startswith("seed ")]
    assert len(seeds) == 10
    return [f"{sum(': finite,' in line for line in seeds)}"]


def dnc_repeat_copy(lines):
    start = next(n for n, line in enumerate(lines) if line.startswith("right bits at length"))
    shares = [re.findall(r"[\d.]+%", line) for line in lines[start + 1 :]]  # repeats × lengths
    assert [len(row) for row in shares] == [5] * 4
    number = lambda share: float(share.rstrip("%"))
    trained = [share for row in shares[:3] for share in row[:4]]
    longer = [row[4] for row in shares]
    smallest = [min(some, key=number) for some in (trained, shares[3][:4], longer)]
    return [smallest[0], max(trained, key=number), *smallest[1:]]


def hyper_lstm(lines):
    pattern = r"(.+?) +(\d+) units  ([\d,]+) parameters  ([\d.]+) ± ([\d.]+) bits"
    models = {row[1]: row.groups()[2:] for line in lines if (row := re.match(pattern, line))}
    assert list(models) == ["LSTM", "LSTM, layer norm", "HyperLSTM"]
    return [figure for figures in models.values() for figure in figures]


def image_gates(lines):
    table = {line[:29].strip(): line[29:].split() for line in lines[1:]}
    figures = []
    for setting in ("as they are", "with clutter"):
        for network in ("SE", "CBAM", "plain, wider"):
            figures += table[f"{setting:14} {network}"][-2:]
    return figures


def convolution_by_attention(lines):
    return [re.split(r" {2,}", line.strip())[1] for line in lines[2:]]


def associative_retrieval(lines):
    return [line.split()[-1] for line in lines[1:]]


def hypernetwork(lines):
    pattern = r".+ kernel +([\d,]+) parameters, .*: ([\d.]+%) ± ([\d.]+%) wrong"
    return [figure for line in lines for figure in re.match(pattern, line).groups()]


FIGURES = {
    "ntm_copy.txt": ntm_copy,
    "ntm_copy_finite.txt": ntm_copy_finite,
    "dnc_repeat_copy.txt": dnc_repeat_copy,
    "hyper_lstm.txt": hyper_lstm,
    "image_gates.txt": image_gates,
    "convolution_by_attention.txt": convolution_by_attention,
    "associative_retrieval.txt": associative_retrieval,
    "hypernetwork.txt": hypernetwork,
}


def test_every_row_has_a_check():
    assert rows().keys() == FIGURES.keys()


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_that_of_the_log(name):
    figure, script = rows()[name][2], rows()[name][4]
    assert re.findall(r"\*\*([^*]+)\*\*", figure) == list(FIGURES[name](log(name)))
    assert (SCRIPTS / script.strip("`").split()[0]).exists()


def test_each_picture_is_there():
    pictures = re.findall(r"\]\(\.\./(images/.+?)\)", PAGE)
    assert len(pictures) == 5
    for picture in pictures:
        assert (ROOT / "docs" / picture).exists()


def test_other_pages_have_the_same_figures():
    gates = (ROOT / "docs/vision/gates.md").read_text(encoding="utf-8")
    assert "\n".join(log("image_gates.txt")) in gates
    hypernetwork = (ROOT / "docs/memory/hypernetwork.md").read_text(encoding="utf-8")
    table = re.findall(
        r"^\| `.*? \| ([\d,]+) \| ([\d.]+) ± ([\d.]+) \|", hypernetwork, re.MULTILINE
    )
    assert [figure for row in table for figure in row] == hyper_lstm(log("hyper_lstm.txt"))
