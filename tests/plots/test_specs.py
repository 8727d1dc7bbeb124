"""Every spec is drawn in every format, with hard labels, and refuses what does not fit."""

import pytest
import torch
from matplotlib.image import imread

from regard.errors import RegardError, ShapeError
from regard.plots import Columns, Grid, Heatmap, Overlay, Profile, Rows, Text
from regard.plots.letters import readable, shown

HARD = ["[CLS]", "猫", "שלום", "سلام", "naïve", "🐱", "$x$", "</s>", "\n", " ", "a" * 80, ""]
torch.manual_seed(0)
WEIGHTS = torch.randn(12, 12).softmax(-1)

SPECS = {
    "heatmap": Heatmap(WEIGHTS, HARD, HARD, "a title with $5 and 猫"),
    "grid": Grid([torch.rand(3, 200, 150), torch.rand(2, 4, 4)], [["a", "b", "c"], ["d", "e"]]),
    "profile": Profile(torch.tensor([[1.0, 2.0, float("nan")], [2.0, 1.0, 0.5]]), ["a", "猫"]),
    "text": Text(HARD, WEIGHTS[0] - 0.1, "words", marked=[1]),
    "overlay": Overlay(torch.rand(20, 30, 3), torch.rand(4, 6), "patches", (1, 2)),
    "rows": Rows([Text(HARD, WEIGHTS[0]), Heatmap(WEIGHTS)], "both"),
    "columns": Columns([Heatmap(WEIGHTS, most=1.0), Heatmap(WEIGHTS - 0.1, colour="diverging")]),
    "nothing": Heatmap(torch.zeros(3, 3)),
    "signed": Heatmap(torch.randn(5, 5)),
    "unknown numbers": Heatmap(torch.full((4, 4), float("nan"))),
}


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
@pytest.mark.parametrize("name", SPECS)
def test_every_spec_in_every_format(tmp_path, name, ending):
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    path = SPECS[name].save(tmp_path / f"x.{ending}")
    assert path.read_bytes().startswith(start) and path.stat().st_size > 1000


def test_a_notebook_gets_a_picture():
    assert SPECS["text"]._repr_png_().startswith(b"\x89PNG")


def test_what_no_font_has_is_written_as_its_code():
    assert readable("\ue000") == "⟨U+E000⟩"
    assert readable("cat") == "cat" and readable("\n") == "⏎" and readable("  ") == "␣␣"
    assert readable("a" * 80).endswith("…") and len(readable("a" * 80)) == 24
    assert shown("5 $ or $6") == r"5 \$ or \$6"


def test_right_to_left_letters_are_turned_round_and_others_are_not():
    assert readable("שלום") == "םולש"
    assert readable("abc שלום 12") == "abc םולש 12" or readable("abc שלום 12") == "abc  םולש12"
    assert readable("abc") == "abc"


def colours(path) -> set[tuple[int, ...]]:
    picture = (torch.from_numpy(imread(path)[..., :3]) * 255).int().flatten(0, 1)
    return {tuple(pixel) for pixel in picture.unique(dim=0).tolist()}


def test_words_without_weight_have_no_colour(tmp_path):
    words = ["one", "two", "three"]
    plain = Text(words, torch.zeros(3)).save(tmp_path / "plain.png")
    strong = Text(words, torch.tensor([0.0, 1.0, 0.0])).save(tmp_path / "strong.png")
    below = Text(words, torch.tensor([0.0, -1.0, 0.0])).save(tmp_path / "below.png")
    orange = [c for c in colours(strong) if c[0] - c[2] > 120]
    blue = [c for c in colours(below) if c[2] - c[0] > 120]
    assert orange and blue
    assert not [c for c in colours(plain) if abs(c[0] - c[2]) > 60]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: Grid([]), ShapeError, "no maps"),
        (lambda: Grid([torch.ones(2, 3)]), ShapeError, "expected 3"),
        (lambda: Grid([torch.ones(2, 3, 3)], [["a"]]), ShapeError, r"\[1\] heads, expected \[2\]"),
        (lambda: Profile(torch.ones(3)), ShapeError, "expected 2"),
        (lambda: Profile(torch.ones(2, 3), ["a"]), ShapeError, "1 labels for 2"),
        (lambda: Text(["a"], torch.ones(2)), ShapeError, "1 labels for 2"),
        (lambda: Overlay(torch.ones(3, 4), torch.ones(2, 2)), ShapeError, "expected .row, column"),
        (lambda: Rows([]), RegardError, "Rows: there is nothing to draw"),
        (lambda: Columns([]), RegardError, "Columns: there is nothing to draw"),
    ],
)
def test_what_is_refused(make, error, said):
    with pytest.raises(error, match=said):
        make()
