"""A map in characters: where each cell and label stands, and what goes into which kind of place."""

import io
import os
import pty
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from regard.cli.terminal import heatmap, ink_of, label

SENTENCE = "The animal did not cross the street because it was too tired"
WORDS = ["[CLS]", *SENTENCE.split(" "), "[SEP]"]
RAMP = {"ascii": " .:-=+*#%@", "shade": " ░▒▓█"}


def drawn(values, rows, columns=None, width=80, ink="ascii", peak=None):
    """The lines of a map."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(heatmap(values, rows, columns or rows, width=width, ink=ink, peak=peak))
    return console.file.getvalue().splitlines()


def coloured(values, rows, width=80):
    """The text of a map, and the colours before and behind each character, line by line."""
    console = Console(
        file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor"
    )
    made = console.render_lines(heatmap(values, rows, rows, width=width, ink="colour"), pad=False)
    lines = []
    for line in made:
        cells = [(letter, part.style) for part in line for letter in part.text]
        lines.append(cells)
    return lines


def written(line):
    return "".join(letter for letter, _ in line)


@pytest.mark.parametrize("ink", ["ascii", "shade"])
def test_shades_are_those_of_the_weights(ink):
    torch.manual_seed(0)
    values = torch.rand(5, 5)
    values[2, 3] = 1.0
    lines = drawn(values, list("abcde"), ink=ink)
    edge = "|" if ink == "ascii" else "│"
    rows = [line.split(edge)[1] for line in lines if re.match(f"[a-e] {re.escape(edge)}", line)]
    ramp = RAMP[ink]
    for i, row in enumerate(rows):
        assert len(row) == 30
        for j in range(5):
            wanted = round(float(values[i, j]) ** 0.5 * (len(ramp) - 1))
            assert set(row[6 * j : 6 * j + 6]) == {ramp[wanted]}, (i, j)
    assert len(rows) == 5


def test_colours_rise_with_the_weights_and_numbers_stand_in_the_cells():
    values = torch.tensor([[0.0, 0.3, 0.7], [0.1, 0.2, 0.05], [1.0, 0.0, 0.0]])
    lines = coloured(values, list("abc"))
    rows = {written(line)[0]: line for line in lines if written(line)[:1] in "abc"}
    assert written(rows["a"]).split() == ["a", "0", "30", "70"]
    bright = {}
    for i, name in enumerate("abc"):
        for j in range(3):
            _, style = rows[name][2 + 6 * j]
            bright[float(values[i, j])] = sum(style.bgcolor.triplet)
    ranked = [bright[value] for value in sorted(bright)]
    assert ranked == sorted(ranked) and len(set(ranked)) == len(ranked)


def test_tall_maps_put_two_rows_on_a_line():
    size = 60
    values = torch.eye(size)
    lines = [
        line for line in coloured(values, [f"w{i}" for i in range(size)]) if "▀" in written(line)
    ]
    assert len(lines) == 30
    full = (253, 231, 37)
    for number, line in enumerate(lines):
        cells = [style for letter, style in line if letter == "▀"]
        above = [j for j, style in enumerate(cells) if style.color.triplet == full]
        below = [j for j, style in enumerate(cells) if style.bgcolor.triplet == full]
        assert (above, below) == ([2 * number], [2 * number + 1])


@pytest.mark.parametrize("width", [24, 40, 80, 120])
@pytest.mark.parametrize("size", [1, 4, 14, 90, 400])
@pytest.mark.parametrize("ink", ["ascii", "shade"])
def test_it_fits_the_width_and_says_what_it_left_out(width, size, ink):
    names = [WORDS[i % len(WORDS)] for i in range(size)]
    values = torch.full((size, size), 0.001)
    values[size // 2, size // 3] = 1.0
    lines = drawn(values, names, width=width, ink=ink)
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) < 70
    assert RAMP[ink][-1] in "".join(lines[:-1]), "the one strong weight is there"
    key = next(line for line in lines if line.split()[:1] == ["0"] and RAMP[ink][1] in line)
    assert re.search(r" (100( percent|%)|0\.1( percent or more|%\+))$", key), "no number is cut off"
    edge = {"ascii": "|", "shade": "│"}[ink]
    rows = [line for line in lines if line.endswith(edge) and line.count(edge) == 2]
    said = "a cell is the strongest of" in " ".join(" ".join(lines).split())
    assert said == (len(rows) < size)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_labels_begin_over_their_columns_and_touch_no_other(width):
    names = [f"<{word}>" for word in WORDS]
    lines = drawn(torch.eye(len(names)), names, width=width)
    body = next(i for i, line in enumerate(lines) if line.rstrip().endswith("|") and "@" in line)
    left = lines[body].index("|") + 1
    cell = lines[body].count("@")
    head = lines[:body]
    found = {}
    for line in head:
        for match in re.finditer(r"<[^>]*>", line):
            found[(match.start() - left) / cell] = match[0]
    labelled = {place: names[int(place)] for place in found}
    assert found == labelled and all(place == int(place) for place in found)
    step = int(sorted(found)[1])
    assert sorted(found) == list(range(0, len(names), step)) and step == (1 if width == 200 else 2)
    for line, below in pairwise(head):  # a stem goes down from every label to its column
        for match in re.finditer(r"[<|]", line):
            assert below[match.start()] == "|"


def test_wide_letters_take_two_cells():
    names = ["猫", "坐在", "🐱", "a", "שלום"]
    lines = drawn(torch.eye(5), names, width=60)
    rows = lines[-6:-1]
    assert {cell_len(line[: line.index("|")]) for line in rows} == {5}
    assert {cell_len(line) for line in rows} == {5 + 1 + 30 + 1}
    assert rows[1].startswith("坐在 |") and rows[4].startswith("שלום\u200e |")


def test_a_scale_may_be_absolute():
    faint = torch.full((1, 2), 0.09)
    assert "@" in "".join(drawn(faint, ["a"], ["b", "c"])[:-1])
    lines = drawn(faint, ["a"], ["b", "c"], peak=1.0)
    assert "@" not in "".join(lines[:-1]) and "100 percent" in lines[-1]


def test_labels_cannot_steer_the_terminal():
    assert label("\x1b[31m\x07\n") == r"\x1b[31m\x07\n"
    assert label("\u202egnihton") == r"\u202egnihton"
    assert label(" ") == "' '" and label("") == "''" and label("[/b]") == "[/b]"
    assert label("👩‍👩‍👧") == "👩‍👩‍👧"


def test_nothing_to_see_and_numbers_that_are_none():
    assert "100 percent" in " ".join(drawn(torch.zeros(2, 2), ["a", "b"]))
    lines = drawn(torch.tensor([[float("nan"), -1.0], [0.5, 0.0]]), ["a", "b"])
    assert lines[-2].startswith("b |@@@@@@      |") and lines[-3].startswith("a |            |")
    drawn(torch.zeros(0, 0), [])


def console(**options):
    environ = options.pop("env", {})
    return Console(file=io.StringIO(), _environ=environ, legacy_windows=False, **options)


@pytest.mark.parametrize(
    ("made", "ink"),
    [
        (lambda: console(), "ascii"),
        (lambda: console(force_terminal=True, env={"TERM": "dumb"}), "ascii"),
        (lambda: console(force_terminal=True, env={"TERM": "xterm-256color"}), "colour"),
        (lambda: console(force_terminal=True, env={"COLORTERM": "truecolor"}), "colour"),
        (lambda: console(force_terminal=True, env={"TERM": "xterm"}), "shade"),
        (
            lambda: console(force_terminal=True, env={"TERM": "xterm-256color", "NO_COLOR": "1"}),
            "shade",
        ),
    ],
)
def test_what_goes_where(made, ink):
    assert ink_of(made()) == ink


SCRIPT = """
import torch
from rich.console import Console
from regard.cli.terminal import heatmap, ink_of
console = Console()
console.print(heatmap(torch.eye(3), "abc", "abc", width=console.width, ink=ink_of(console)))
"""


def in_a_terminal(**environ):
    """What a real terminal gets."""
    ours, theirs = pty.openpty()
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "COLUMNS": "60", **environ}
    subprocess.run([sys.executable, "-c", SCRIPT], stdout=theirs, env=env, check=True)
    os.close(theirs)
    found = b""
    try:
        while more := os.read(ours, 65536):
            found += more
    except OSError:
        pass  # how Linux says that the other side is closed
    os.close(ours)
    return found.decode()


def test_a_real_terminal_and_a_real_pipe():
    colour = in_a_terminal(TERM="xterm-256color", COLORTERM="truecolor")
    assert "\x1b[" in colour and "48;2;253;231;37" in colour
    plain = in_a_terminal(TERM="dumb")
    assert "\x1b" not in plain and "@@@@" in plain and plain.isascii()
    env = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    piped = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, env=env, check=True)
    assert b"\x1b" not in piped.stdout and b"@@@@" in piped.stdout and piped.stdout.isascii()


def test_columns_without_a_name_are_told():
    assert "columns have" not in " ".join(drawn(torch.eye(4), WORDS[:4]))
    said = " ".join(" ".join(drawn(torch.eye(len(WORDS)), WORDS, width=40)).split())
    assert said.endswith(
        "7 of 14 columns have their word above them; a wider terminal or --html shows the others"
    )
    assert "columns have" not in " ".join(drawn(torch.eye(len(WORDS)), WORDS, width=200))


@pytest.mark.parametrize(
    ("ink", "negative", "positive"), [("ascii", "0", "#"), ("shade", "●", "█")]
)
def test_signed_weights_have_two_ramps(ink, negative, positive):
    console = Console(file=io.StringIO(), width=60, color_system=None, legacy_windows=False)
    values = torch.tensor([[0.5, -0.5], [0.0, 0.1]])
    console.print(heatmap(values, "ab", "ab", width=60, ink=ink, signed=True))
    *_, first, second, key = console.file.getvalue().splitlines()
    assert first[3:-1] == 6 * positive + 6 * negative
    assert second[3:9] == 6 * " " and second[9] not in " " + positive + negative
    assert key.split()[0] == "-0.5" and key.split()[-1] == "0.5" and "percent" not in key


def test_signed_weights_have_two_hues():
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system="truecolor")
    values = torch.tensor([[0.5, -0.5], [0.0, 0.1]])
    group = heatmap(values, "ab", "ab", width=60, ink="colour", signed=True)
    line = next(line for line in console.render_lines(group, pad=False) if "0.50" in str(line))
    grounds = [part.style.bgcolor.triplet for part in line if "0.50" in part.text]
    assert [part.text.strip() for part in line if "0.50" in part.text] == ["0.50", "-0.50"]
    assert grounds[0].red > grounds[0].blue and grounds[1].blue > grounds[1].red


def test_a_block_of_signed_weights_shows_the_one_of_largest_size():
    values = torch.zeros(200, 200)
    values[0, 0], values[1, 1] = 0.5, -1.0
    console = Console(file=io.StringIO(), width=60, color_system=None, legacy_windows=False)
    names = [f"w{number}" for number in range(200)]
    console.print(heatmap(values, names, names, width=60, ink="ascii", signed=True))
    lines = console.file.getvalue().splitlines()
    (first,) = (line for line in lines if line.lstrip().startswith("w0 |"))
    assert first.split("|")[1][0] == "0"
