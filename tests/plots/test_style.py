"""Pictures for papers: their size, their fonts, and lines that can be told apart."""

import re
import struct
import zlib
from itertools import pairwise

import pytest
import torch

from regard import plots
from regard.errors import RegardError

WORDS = ["see", "that", "girl", "run", "$x$", "שלום"]


def specs():
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(6, 6, generator=generator).softmax(-1)
    lines = torch.rand(12, 6, generator=generator)
    return [
        plots.Heatmap(values, WORDS, WORDS, "layer 1, head 8"),
        plots.Grid([values[None].expand(8, 6, 6)] * 2, [["previous"] * 8] * 2, "16 heads"),
        plots.Profile(lines[:3], ["one", "two", "three"], "three lines", value_title="entropy"),
        plots.Profile(lines, [f"head {head}" for head in range(12)], "twelve lines"),
        plots.Text(WORDS, values[0], "what mattered", [1]),
    ]


def pdf_objects(path):
    """A PDF with its streams of text and fonts unpacked."""
    data = path.read_bytes()
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
    return data + b"".join(map(unpacked, streams))


def unpacked(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:  # pixels, or a stream that is not packed
        return stream


@pytest.mark.parametrize("number", range(5))
def test_pdf_embeds_truetype_and_no_type_3(tmp_path, number):
    data = pdf_objects(specs()[number].save(tmp_path / "a.pdf", plots.COLUMN))
    assert b"/Type3" not in data and b"/FontFile2" in data
    assert re.search(rb"/Subtype\s*/(TrueType|CIDFontType2)", data)
    (box,) = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", data)
    assert float(box[0]) == pytest.approx(3.25 * 72, abs=0.5), "as wide as a column"


@pytest.mark.parametrize("number", range(5))
def test_svg_has_text_that_can_be_read_and_edited(tmp_path, number):
    svg = specs()[number].save(tmp_path / "a.svg", plots.PAGE).read_text()
    texts = [re.sub("<.*?>", "", text) for text in re.findall(r"<text.*?</text>", svg, re.DOTALL)]
    title = specs()[number].title
    assert any(text.startswith(title) for text in texts)
    sizes = {float(size) for size in re.findall(r"font(?:-size)?: ?(?:[a-z]+ )*([\d.]+)px", svg)}
    assert sizes and max(sizes) <= 9.7, "letters of 8 points, titles of a fifth more"
    if number in (0, 4):
        assert {"see", "girl", "$x$"} <= set(texts)
        assert "שלום" in texts, "in the order of reading: what shows it turns it round"
    if number == 1:
        assert {"0", "7", "head", "layer", "weight"} <= set(texts), "and a scale of weights"
    if number == 2:
        assert {"one", "two", "three", "mean", "entropy"} <= set(texts), "names at the ends"
    if number == 3:
        assert {f"head {head}" for head in range(12)} <= set(texts), "a picture each"


def png_size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_width_font_and_dots_are_options(tmp_path):
    spec = specs()[0]
    wide = png_size(spec.save(tmp_path / "a.png", plots.Style(width=5.0, dpi=200)))
    assert wide[0] == 1000
    narrow = png_size(spec.save(tmp_path / "b.png", plots.Style(width=2.5, dpi=200)))
    assert narrow == (500, wide[1] // 2)
    small = png_size(spec.save(tmp_path / "c.png", plots.Style(font_size=5.0)))
    own = png_size(spec.save(tmp_path / "d.png"))
    assert abs(own[0] - 2 * small[0]) <= 2, "the picture's own width suits its letters"
    with pytest.raises(RegardError, match=r"Style: width=0.1, expected at least 1"):
        plots.Style(width=0.1)
    with pytest.raises(RegardError, match="Style: font_size=nan"):
        plots.Style(font_size=float("nan"))


def test_a_grid_has_one_scale_for_all_heads():
    """A head whose weights are a hundredth is darker, not as bright as the strongest."""
    from regard.plots.draw import Pen, _figure

    strong, weak = torch.eye(5), torch.eye(5) / 100
    figure = _figure(plots.Grid([torch.stack([strong, weak])]), Pen(plots.Style()))
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert {image.norm.vmax for image in images[:2]} == {1.0}
    assert figure.axes[-1].get_ylabel() == "weight"


def test_words_that_are_set_aside_do_not_set_the_scale(tmp_path):
    values = torch.tensor([float("nan"), 0.01, 0.02])
    path = plots.Text(["[CLS]", "a", "b"], values).save(tmp_path / "a.svg")
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    assert to_hex(colormaps["Oranges"](0.75)) in path.read_text(), "the strongest word is full"


@pytest.mark.parametrize("lines", [1, 6, 7, 48, 49, 100])
def test_any_number_of_lines_is_drawn(tmp_path, lines):
    values = torch.rand(lines, 4)
    values[0, 2:] = float("nan")
    assert plots.Profile(values).save(tmp_path / "a.png").stat().st_size > 5000


def test_ends_of_lines_are_moved_apart():
    from regard.plots.draw import _apart

    heights = _apart([0.5, 0.5, 0.1, 0.52], 0.1)
    ranked = sorted(heights)
    assert all(b - a >= 0.099 for a, b in pairwise(ranked))
    assert heights[2] == pytest.approx(0.1) and heights[3] > 0.52
