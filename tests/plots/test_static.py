"""What holds for every picture: labels that can be read, colours that mean what they say, and a
matplotlib that is left as it was."""

import ast
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from matplotlib import colormaps

import regard.plots
from regard.plots import Heatmap, Style
from regard.plots.draw import Pen, _figure

WORDS = ["The", "animal", "internationalisation", "it", "was", "street"]


def labels(size):
    """Boxes of the labels on both axes of a map of so many tokens, and the size of its letters."""
    names = [WORDS[place % len(WORDS)] for place in range(size)]
    values = torch.rand(size, size).softmax(-1)
    figure = _figure(Heatmap(values, names, names, "a map"), Pen(Style()))
    figure.canvas.draw()
    axes = figure.axes[0]
    shown = [axes.get_yticklabels(), axes.get_xticklabels()]
    return figure, axes, shown


@pytest.mark.parametrize("size", [1, 4, 40, 400])
def test_labels_are_large_and_touch_no_other(size):
    figure, axes, (down, across) = labels(size)
    assert min(size, 20) <= len(down) <= 40 and len(down) == len(across)
    assert min(text.get_fontsize() for text in (*down, *across)) >= 8
    for above, below in pairwise(text.get_window_extent() for text in down):
        assert above.y0 >= below.y1 - 1
    # Those across are turned by 45 degrees: lines of text are apart by the distance between their
    # ends over √2.
    places = [text.get_window_extent().x1 for text in across]
    height = across[0].get_fontsize() / 72 * figure.dpi
    for left, right in pairwise(places):
        assert (right - left) / 2**0.5 >= 0.7 * height
    for text in (*down, *across, axes.title):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1


def test_a_long_title_stays_on_the_page():
    title = "model.decoder.layers.11.cross_attention.self, mean of heads, 25 windows: patch 1376"
    image = torch.rand(50, 50, 3)
    for spec in (
        Heatmap(torch.eye(4), title=title),
        Heatmap(torch.eye(4), title=f"{title} → {title} and {title}"),
        regard.plots.Overlay(image, torch.rand(5, 5), title),
    ):
        figure = _figure(spec, Pen(Style()))
        figure.canvas.draw()
        box = figure.axes[0].title.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, type(spec).__name__


def lightness(colours):
    """CIE 1976 L*, from sRGB of 0 to 1, (colour, 3)."""
    linear = torch.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    y = linear @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)
    return torch.where(y > (6 / 29) ** 3, 116 * y ** (1 / 3) - 16, y * (29 / 3) ** 3)


@pytest.mark.parametrize(
    ("name", "most", "even"),
    [("viridis", 1.0, 2.0), ("inferno", 1.0, 2.0), ("Oranges", 0.75, None), ("Blues", 0.75, None)],
)
def test_colours_become_lighter_or_darker_all_the_way(name, most, even):
    """So they can be told apart without seeing hues; in the maps of weights by even steps."""
    places = torch.linspace(0, most, 64)
    found = lightness(torch.from_numpy(colormaps[name](places.numpy())[:, :3]).double())
    steps = found.diff()
    assert bool((steps > 0).all()) or bool((steps < 0).all())
    if even is not None:
        assert float(steps.abs().max() / steps.abs().mean()) < even
    assert float((found[-1] - found[0]).abs()) > 25


def test_colours_of_differences_become_darker_on_either_side_of_0():
    places = torch.linspace(0, 1, 65)
    steps = lightness(torch.from_numpy(colormaps["RdBu_r"](places.numpy())[:, :3]).double()).diff()
    assert (steps[:32] > 0).all() and (steps[32:] < 0).all()


def test_the_colour_maps_in_use_are_those():
    source = Path(regard.plots.draw.__file__).read_text()
    known = {"viridis", "inferno", "Oranges", "Blues", "RdBu_r"}
    strings = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    assert strings & set(colormaps) == known


def test_two_files_alone_know_matplotlib():
    folder = Path(regard.plots.__file__).parent
    knowing = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.startswith("matplotlib") for name in names):
                knowing.add(path.name)
    assert knowing == {"draw.py", "letters.py"}


CODE = """
import sys, torch, regard.plots as plots
names = ["a", "猫", "שלום", "🐱"]
values = torch.rand(4, 4).softmax(-1)
specs = [
    plots.Heatmap(values, names, names, "a"),
    plots.Grid([values[None]], [["x"]]),
    plots.Profile(values, names),
    plots.Text(names, values[0]),
    plots.Overlay(torch.rand(8, 8, 3), values, "", (0, 0), ((2,), (2,))),
]
specs.append(plots.Rows(specs[:2]))
assert "matplotlib" not in sys.modules, "a spec is data"
import matplotlib
before, maps = matplotlib.rcParams.copy(), list(matplotlib.colormaps)
backend = matplotlib.get_backend(auto_select=False)
for number, spec in enumerate(specs):
    for ending in ("png", "svg", "pdf"):
        spec.save(f"{number}.{ending}", plots.COLUMN)
assert matplotlib.rcParams.copy() == before and list(matplotlib.colormaps) == maps
assert matplotlib.get_backend(auto_select=False) == backend
assert "matplotlib.pyplot" not in sys.modules
"""


def test_matplotlib_is_left_as_it_was(tmp_path):
    subprocess.run([sys.executable, "-W", "error", "-c", CODE], check=True, cwd=tmp_path)
