"""Each view in both themes beside the kept picture, and that the comparison can fail."""

import io

import kept
import pytest
from PIL import Image, ImageDraw

VIEWS = {
    "map": "view=map",
    "matrix": "view=matrix&layer=3&head=1",
    "words": "view=matrix&layer=all&mode=rollout&unit=words&special=folded",
    "lines": "view=lines&layer=3&head=1&selected=12",
    "text": "view=text&layer=3&head=1&selected=12",
}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_looks_as_it_did(open_page, sentence_trace, tmp_path, view, dark):
    looking = open_page(sentence_trace, VIEWS[view], dark=dark)
    name = f"{view}-{'dark' if dark else 'light'}"
    assert (said := kept.complaint(name, looking.picture(), tmp_path)) is None, said


def test_the_image_view_looks_as_it_did(open_page, disc_trace, tmp_path):
    looking = open_page(disc_trace, "view=image&layer=2&head=0&selected=1")
    assert (said := kept.complaint("image-light", looking.picture(), tmp_path)) is None, said


def test_a_narrow_screen_looks_as_it_did(open_page, sentence_trace, tmp_path):
    looking = open_page(sentence_trace, VIEWS["matrix"], width=390, height=844)
    assert (said := kept.complaint("narrow-light", looking.picture(), tmp_path)) is None, said


def _png(image: Image.Image) -> bytes:
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def test_what_is_gone_or_elsewhere_is_noticed(open_page, sentence_trace, tmp_path, monkeypatch):
    """An empty matrix, one that moved by a few labels, another theme and another size all fail."""
    monkeypatch.delenv("REGARD_UPDATE_SCREENSHOTS", raising=False)
    png = open_page(sentence_trace, VIEWS["matrix"]).picture()
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    kept.small(png).save(tmp_path / "a.png")
    assert kept.complaint("a", png, tmp_path) is None
    full = Image.open(io.BytesIO(png)).convert("RGB")

    blank = full.copy()
    ImageDraw.Draw(blank).rectangle((500, 250, 900, 650), fill=(128, 128, 128))
    moved = Image.new("RGB", full.size, full.getpixel((2, 2)))
    moved.paste(full, (60, 60))
    corner = full.copy()
    ImageDraw.Draw(corner).rectangle((600, 300, 700, 400), fill=(255, 0, 0))
    for wrong in (blank, moved, corner, full.resize((640, 400)), full.point(lambda x: 255 - x)):
        assert "differs by" in kept.complaint("a", _png(wrong), tmp_path)
    assert "is not there" in kept.complaint("b", png, tmp_path)


def test_another_head_is_noticed(open_page, sentence_trace, tmp_path, monkeypatch):
    monkeypatch.delenv("REGARD_UPDATE_SCREENSHOTS", raising=False)
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    first = open_page(sentence_trace, "view=matrix&layer=3&head=1").picture()
    kept.small(first).save(tmp_path / "a.png")
    other = open_page(sentence_trace, "view=matrix&layer=0&head=2").picture()
    assert kept.complaint("a", other, tmp_path)
