"""Pictures, numbers and links that people take away from a page."""

import csv
import io
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from kept import same
from PIL import Image, ImageChops
from viewer_traces import HOSTILE, gated

from regard.aggregate import Words
from regard.viewer import page

SVG = "{http://www.w3.org/2000/svg}"
VIEWS = {
    "map": "view=map",
    "matrix": "view=matrix&layer=3&head=1",
    "lines": "view=lines&layer=3&head=1&selected=12",
    "text": "view=text&layer=3&head=1&selected=12",
}


@pytest.fixture(scope="module")
def gated_trace():
    return gated()


def texts(path) -> str:
    """All the text of an SVG, which must be well-formed XML."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    return "\n".join("".join(node.itertext()) for node in root.iter(f"{SVG}text"))


def is_drawn(picture: Image.Image) -> bool:
    """Whether there is more on a picture than its ground."""
    plain = Image.new("RGB", picture.size, picture.getpixel((0, 0)))
    return ImageChops.difference(picture, plain).getbbox() is not None


@pytest.mark.parametrize("view", VIEWS)
def test_a_picture_as_png_and_svg(open_page, sentence_trace, view):
    looking = open_page(sentence_trace, VIEWS[view])
    looking.page.wait_for_timeout(200)
    svg = looking.downloaded("export-svg")
    picture = Image.open(looking.downloaded("export-png"))
    root = ElementTree.parse(svg).getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    scale = picture.width / width
    assert picture.format == "PNG" and scale in (1.0, 2.0, 3.0)
    assert picture.height == pytest.approx(scale * height, abs=1)
    assert width > 300 and height > 100
    assert is_drawn(picture.convert("RGB"))
    said = texts(svg)
    wanted = ["Layer 0", "Layer 5"] if view == "map" else ["animal", "street", "##bel"]
    for word in wanted:
        assert word in said


def test_the_map_of_heads_without_types_and_of_ranked_heads(
    open_page, sentence_trace, gated_trace, tmp_path
):
    """Signed weights and gates have no types; sorted heads have a figure."""
    signed = page(torch.randn(1, 2, 6, 6), kind="signed").save(tmp_path / "signed.html")
    for drawn, numbers in ((signed, ["0", "1"]), (gated_trace, ["0"])):
        looking = open_page(drawn, "view=map")
        said = texts(looking.downloaded("export-svg")).splitlines()
        assert set(numbers) <= set(said)
    looking = open_page(sentence_trace, "view=map&pair=2,4&sort=pair")
    value = looking.page.locator(".heads-map .thumb-value").first.inner_text()
    assert value.removesuffix("%") + " %" in texts(looking.downloaded("export-svg"))


def test_the_picture_of_an_image(open_page, disc_trace):
    looking = open_page(disc_trace, "view=image&layer=2&head=0&selected=1")
    looking.page.wait_for_timeout(200)
    svg, png = looking.downloaded("export-svg"), looking.downloaded("export-png")
    assert ElementTree.parse(svg).getroot().findall(f".//{SVG}image")
    assert is_drawn(Image.open(png).convert("RGB"))


def test_the_exported_picture_is_the_one_on_screen(open_page, sentence_trace):
    """The strongest cell of a row is dark in the PNG, a weak one is not."""
    looking = open_page(sentence_trace, VIEWS["matrix"])
    svg = looking.downloaded("export-svg")
    picture = Image.open(looking.downloaded("export-png")).convert("L")
    rows, columns = looking.label_places(svg)
    row = sentence_trace.weights(3)[1][12]
    scale = picture.width / float(ElementTree.parse(svg).getroot().get("width"))

    def shade(column: int) -> int:
        x, y = scale * (columns[column] + 6), scale * (rows[12] + 6)
        return picture.getpixel((round(x), round(y)))

    assert shade(int(row.argmax())) < shade(int(row.argmin())) - 60


def test_hostile_tokens_in_files(open_page, hostile_trace):
    looking = open_page(hostile_trace, "view=matrix")
    assert "</script>" in texts(looking.downloaded("export-svg"))
    Image.open(looking.downloaded("export-png")).verify()
    rows = looking.table()
    names = [row["key_token"] for row in rows[: len(HOSTILE)]]
    assert names == HOSTILE
    for view in ("lines", "text", "map"):
        looking.view(view)
        texts(looking.downloaded("export-svg"))


def test_numbers_are_those_of_what_is_chosen_now(open_page, sentence_trace):
    """Also on the map, which shows none of them, after another layer was chosen there."""
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1")
    looking.page.keyboard.press("1")
    looking.page.keyboard.press("]")
    assert looking.hash()["layer"] == "4"
    got = torch.tensor([float(row["weight"]) for row in looking.table()], dtype=torch.double)
    true = sentence_trace.weights(4)[1]
    torch.testing.assert_close(got.view_as(true), true, atol=1e-7, rtol=0)


def test_a_cell_that_a_spreadsheet_would_run_is_text(open_page, tmp_path):
    """Tokens that begin as formulas do are marked as text."""
    tokens = ["=1+1", "+x", "-y", "@SUM(A1)"]
    weights = torch.eye(4)[None, None]
    path = page(weights, words=Words.each(tokens)).save(tmp_path / "formula.html")
    text = open_page(path, "view=matrix").downloaded("export-csv").read_text()
    names = [row["key_token"] for row in csv.DictReader(io.StringIO(text, newline=""))][:4]
    assert names == [f"'{token}" for token in tokens]


LINKS = [
    "view=matrix&layer=4&head=7&unit=words&special=folded&colour=log&zoom=2,3,8,9",
    "view=lines&layer=2&head=3&selected=4,9&pinned=true&hidden=0,21&limit=threshold:0.02",
    "view=text&layer=all&mode=rollout&selected=5&direction=to&theme=dark",
    "view=map&colour=log",
]


@pytest.mark.parametrize("fragment", LINKS)
def test_a_link_restores_the_exact_view(open_page, sentence_trace, fragment):
    first = open_page(sentence_trace, fragment)
    before = first.picture()
    link = first.copied_link()
    again = open_page(sentence_trace, link.partition("#")[2])
    assert same(again.picture(), before)
    assert not same(open_page(sentence_trace, "view=matrix").picture(), before)
    assert again.copied_link() == link


def test_a_link_made_by_clicking_restores_the_view(open_page, sentence_trace):
    first = open_page(sentence_trace)
    first.by("thumb-3-1").click()
    first.by("unit-toggle").click()
    first.by("colour-toggle").click()
    first.view("lines")
    first.by("lines-row-4").click()
    first.by("lines-row-6").click()
    first.page.evaluate("document.activeElement.blur()")
    before = first.picture()
    second = open_page(sentence_trace, first.copied_link().partition("#")[2])
    assert same(second.picture(), before)


def test_a_link_that_is_nonsense_opens_the_page(open_page, sentence_trace):
    looking = open_page(
        sentence_trace, "view=nothing&layer=99&head=-3&zoom=a,b&selected=x&mode=relevance&limit=::"
    )
    assert looking.page.locator("[data-testid^=view-tab-][aria-selected=true]").count() == 1


def test_going_to_another_link_changes_the_view(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=1&head=1")
    looking.page.evaluate("location.hash = 'view=text&layer=2&head=3'")
    looking.page.wait_for_selector("[data-testid=view-tab-text][aria-selected=true]")
    assert looking.by("layer-select").input_value().endswith("2")
