"""Drawing a heatmap."""

import subprocess
import sys

import pytest
import torch
from matplotlib.image import imread

from regard.errors import MissingExtraError, RegardError, ShapeError
from regard.plots import Heatmap


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_formats(tmp_path, ending, start):
    labels = tuple("abc")
    path = Heatmap(torch.eye(3), labels, labels, "title").save(tmp_path / f"map.{ending}")
    assert path.read_bytes().startswith(start)


def test_small_maps_show_their_values_and_large_ones_do_not(tmp_path):
    def texts(size):
        labels = tuple(str(i) for i in range(size))
        path = Heatmap(torch.full((size, size), 0.25), labels, labels).save(tmp_path / "m.svg")
        return path.read_text().count(">0.25</text>")

    assert texts(4) >= 16
    assert texts(40) < 10


def test_a_strong_weight_does_not_darken_a_large_map(tmp_path):
    values = torch.full((300, 300), 0.003)
    values[0, 0] = 1.0
    values[150:] = 0.001
    path = Heatmap(values).save(tmp_path / "m.png")
    picture = torch.from_numpy(imread(path)[..., :3]).float()
    height, width = picture.shape[:2]
    above, below = picture[height // 4, width // 2], picture[3 * height // 4, width // 2]
    assert (above - below).abs().sum() > 0.3, "both halves look the same"


def test_a_map_of_thousands_is_pooled_and_drawn_in_logarithms(tmp_path):
    values = torch.rand(3000, 2500).exp() / 2500
    assert Heatmap(values, colour="log").save(tmp_path / "m.png").stat().st_size > 10_000


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"values": torch.ones(1, 2, 2)}, "3 axes .* expected 2"),
        (
            {"values": torch.ones(2, 2), "colour": "red"},
            "expected one of 'linear', 'log', 'diverging'",
        ),
    ],
)
def test_what_cannot_be_drawn(options, text):
    with pytest.raises(RegardError, match=text):
        Heatmap(**options)


def test_a_wrong_path_is_told_before_drawing(tmp_path):
    spec = Heatmap(torch.eye(2))
    with pytest.raises(RegardError, match=r"expected \.png, \.svg, \.pdf"):
        spec.save(tmp_path / "m.docx")
    with pytest.raises(RegardError, match="there is no folder"):
        spec.save(tmp_path / "nowhere" / "m.png")


def test_labels_must_fit():
    with pytest.raises(ShapeError, match="2 labels for 3 on axis key"):
        Heatmap(torch.eye(3), tuple("abc"), tuple("ab"))


def test_drawing_touches_no_global_state(tmp_path):
    code = (
        "import sys, torch, regard.plots as p\n"
        f"p.Heatmap(torch.eye(2), ('a', 'b'), ('a', 'b')).save({str(tmp_path / 'x.png')!r})\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_is_named_with_its_command():
    assert "pip install 'regard[plots]'" in str(MissingExtraError("matplotlib", "plots"))


def test_the_strongest_are_told_apart_where_nothing_is_clipped(tmp_path):
    values = torch.full((90, 9), 0.01)
    values[5:10, 4], values[40:52, 4] = 1.0, 0.6

    def colours(**options):
        picture = imread(Heatmap(values, **options).save(tmp_path / "m.png"))[..., :3]
        height, width = picture.shape[:2]
        left, right = int(0.1 * width), int(0.8 * width)  # without the scale beside the map
        inside = torch.from_numpy(picture[int(0.1 * height) : int(0.85 * height), left:right])
        return {tuple(pixel) for pixel in (255 * inside).int().flatten(0, 1).tolist()}

    bright = [one for one in colours(clip=False) if one[1] > 100 and one[2] < 150]
    same = [one for one in colours() if one[1] > 100 and one[2] < 150]
    assert len(bright) == len(same) + 1


def test_negative_weights_of_large_maps_have_colours_of_their_own(tmp_path):
    values = torch.full((90, 90), 0.5)
    values[:30], values[30:60] = 0.0, -0.5
    picture = imread(Heatmap(values).save(tmp_path / "m.png"))[..., :3]
    height, width = picture.shape[:2]
    bands = [tuple(picture[int(share * height), int(0.45 * width)]) for share in (0.2, 0.5, 0.8)]
    assert len(set(bands)) == 3


def test_diverging_colours_are_those_of_the_sign(tmp_path):
    values = torch.full((90, 90), 0.5)
    values[:30], values[30:60] = 0.0, -0.25
    picture = imread(Heatmap(values, colour="diverging").save(tmp_path / "m.png"))[..., :3]
    height, width = picture.shape[:2]
    nothing, below, above = (
        picture[int(share * height), int(0.45 * width)] for share in (0.2, 0.5, 0.8)
    )
    assert nothing.min() > 0.9, "0 is white"
    assert below[2] > below[0] + 0.1 and above[0] > above[2] + 0.1
    assert below.min() > above.min(), "half as strong"


def test_maps_with_one_scale(tmp_path):
    labels = tuple("ab")
    strong = Heatmap(torch.full((2, 2), 0.4), labels, labels, most=0.8).save(tmp_path / "a.svg")
    assert ">0.8</text>" in strong.read_text() and ">0.0</text>" in strong.read_text()


def test_the_weight_of_the_last_colour_may_be_said(tmp_path):
    """So that 9 % is as dark in one picture as in another."""

    def colour(values, **options):
        """Of the left half of a picture, nearly all of which is one cell."""
        path = Heatmap(torch.tensor(values), **options).save(tmp_path / "map.png")
        picture = torch.from_numpy(imread(path)[..., :3]).float()
        height, width = picture.shape[:2]
        return (
            picture[height // 4 : height // 3, width // 4 : width // 3].flatten(0, 1).median(0)[0]
        )

    faint, strong = [[0.09, 0.01]], [[0.9, 0.1]]
    assert torch.allclose(colour(faint), colour(strong), atol=0.02)
    assert (colour(faint, most=1.0) - colour(strong, most=1.0)).abs().sum() > 0.5
    for options in ({"most": 0.0}, {"most": 1.0, "colour": "log"}):
        with pytest.raises(RegardError, match="expected a number above 0 with colour='linear' or"):
            Heatmap(torch.tensor(faint), **options)
