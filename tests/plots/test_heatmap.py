"""Drawing a heatmap."""

import subprocess
import sys

import pytest
import torch

from regard.errors import MissingExtraError, ShapeError
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
        return path.read_text().count("<!-- 0.25 -->")

    assert texts(4) >= 16
    assert texts(40) < 10


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
