"""The gallery: the Python on its pages runs, and what the text claims is what the records say."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from reactions import REACTIONS, sides

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs/gallery"
LARGEST = 5_000_000  # bytes of a page
#: Rows that each page opens with.
SELECTED = {
    "encoder": ["it"],
    "llama": [],
    "speech": [],
    "vision": ["mask 1"],
    "atoms": [],
}


def _script():
    spec = importlib.util.spec_from_file_location("make_gallery", GALLERY / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = _script()


def text(name):
    return (GALLERY / f"{name}.md").read_text()


@pytest.fixture(scope="module", params=make.NAMES)
def exhibit(request, tmp_path_factory):
    """Name of a page, what its Python defined, and the file that it saved."""
    folder = tmp_path_factory.mktemp("gallery")
    names = make.run(request.param, folder)
    (file,) = folder.iterdir()
    return request.param, names, file


def manifest(file):
    (found,) = re.findall(r'<script type="application/json" id="manifest">(.*?)</script>', file)
    return json.loads(found)


@pytest.mark.slow  # `make docs` makes the pages
def test_each_page_is_one_small_file_that_opens_at_a_view_it_has(exhibit):
    name, _, file = exhibit
    assert file.name == f"{name}.html"
    assert 100_000 < file.stat().st_size < LARGEST
    (scene,) = manifest(file.read_text())["scenes"]
    view = dict(pair.split("=") for pair in make.fragment(name).split("&"))
    part = scene["parts"][int(view.get("part", 0))]
    site = scene["sites"][part["sites"][int(view["layer"])]]
    assert int(view["head"]) < site["heads"]
    assert view["view"] != "image" or scene["image"]
    sequence = scene["sequences"][site["query_sequence"]]
    unit = sequence["words"]["names"] if view.get("unit") == "words" else sequence["tokens"]
    shown = [unit[int(row)] for row in view.get("selected", "").split(",") if row]
    assert shown == SELECTED[name]
    if "zoom" in view:
        top, left, bottom, right = map(int, view["zoom"].split(","))
        assert top < bottom <= site["queries"] and left < right <= site["keys"]


def test_the_landing_page_and_the_overview_lead_to_the_pages():
    landing = (ROOT / "docs/index.md").read_text()
    name, view = re.search(r'<iframe src="gallery/(\w+)\.html#([^"]*)"', landing).groups()
    assert view.replace("&amp;", "&") == make.fragment(name), "a live view, on the first screen"
    assert landing.index("<iframe") < 400
    overview = text("index")
    for name in make.NAMES:
        assert f"](../images/gallery-{name}.png)]({name}.md)" in overview
        assert (ROOT / f"docs/images/gallery-{name}.png").stat().st_size < make.LARGEST


def encoder(names):
    tokens = names["text"].tokens
    weights = names["trace"]["encoder.layer.3.attention.self"].weights()[0, 1]
    before = names["trace"][0].weights()[0, 2].diagonal(-1)[:-1]
    assert before.min() > 0.95, "layer 0 head 2 is a diagonal"
    return [f"**{weights[tokens.index('it'), tokens.index('animal')]:.2f}**"]


def llama(names):
    tokens, weights = names["tokens"], names["trace"][18].weights()[0, 6]
    first = names["prompt"] - 1
    rows = range(first, first + 5)
    assert [tokens[row] for row in rows] == ["ĠLud", "m", "ila", "ĠPet", "ro"]
    assert [tokens[row + 1] for row in rows] == ["m", "ila", "ĠPet", "ro", "va"]
    given = [weights[row, tokens.index(tokens[row + 1])] for row in rows]
    rest = weights[first + 6 :, 0]
    assert rest.min() > 0.95, "where there is nothing to copy it rests on the first token"
    assert 0.90 <= min(given) < 0.91
    return ["at least **0.90**"]


def speech(names):
    record = names["heard"].trace["model.decoder.layers.2.encoder_attn"]
    rows = record.weights()[0, 4, names["heard"].prompt - 1 :, : int(2.77 * 50)]
    place = (rows * torch.arange(rows.shape[1])).sum(-1) / rows.sum(-1)
    r = np.corrcoef(place, np.arange(len(place)))[0, 1]
    words = names["heard"].words[0]
    assert " ".join(words.names[2:]) == "He was not an ill-disposed young man ."
    assert record.key_tokens[100] == "2.00 s"
    return [f"**{r:.2f}**"]


def vision(names):
    trace = names["seen"].trace
    assert [record.shape[2:] for record in trace] == [(7, 64 * 64)] * 3
    weights = trace["mask_decoder.transformer.final_attn_token_to_image"].weights()
    masks = trace.output["masks"].float()  # (1, mask, row, column)
    eye = torch.nn.functional.avg_pool2d(masks[:, 0], 16).flatten()  # (patch,)
    token = names["seen"].words[0].names.index("mask 1")
    assert masks[0, 2].mean() > 0.7, "mask 3 is the face"
    early = trace[0].weights()[0, :, token] @ eye
    assert early.max() < 0.2, "layer 0 has not found it"
    share = weights[0, 0, token] @ eye
    return [f"**{share:.2f}**", f"**{100 * eye.mean():.0f} %**"]


def atoms(names):
    tokens = names["reaction"].tokens
    reaction, old, new = REACTIONS["suzuki"]
    assert "".join(tokens[1:-1]) == reaction
    before, after = sides(tokens)
    weights = names["trace"][10].weights()[0, 5]
    letters = dict(zip(before, old))
    right = [letters.get(int(weights[row].argmax())) == new[i] for i, row in enumerate(after)]
    return [f"**{sum(right)} of {len(right)}**"]


FIGURES = {
    "encoder": encoder,
    "llama": llama,
    "speech": speech,
    "vision": vision,
    "atoms": atoms,
}


def test_every_figure_of_the_text_is_that_of_the_record(exhibit):
    name, names, _ = exhibit
    figures = FIGURES[name](names)
    shown = re.findall(r"(?:at least )?\*\*[^*]+\*\*", text(name))
    assert shown == figures


def test_a_page_is_made_again_only_when_it_is_older_than_its_sources(tmp_path, monkeypatch):
    for name in make.NAMES:
        (tmp_path / f"{name}.md").write_text("")
    source = tmp_path / "source.py"
    source.write_text("")
    monkeypatch.setattr(make, "HERE", tmp_path)
    monkeypatch.setattr(make, "ROOT", tmp_path)
    monkeypatch.setattr(make, "SOURCES", ("source.py",))
    assert make.stale("encoder")
    page = tmp_path / "encoder.html"
    page.write_text("")
    later = source.stat().st_mtime + 10
    make.os.utime(page, (later, later))
    assert not make.stale("encoder")
    make.os.utime(source, (later + 10, later + 10))
    assert make.stale("encoder")
