"""Pages of traces and records: what `save` writes by the ending of the file's name."""

import json
import re

import pytest
import torch
from record_examples import record, three_layers_twice
from torch import nn

import regard
from regard.errors import RegardError
from regard.record import Trace


@pytest.fixture(scope="module")
def trace():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad(), regard.capture(model, tokens=["a", "b", "c"]) as found:
        model(torch.randn(2, 3, 16))
    return found


def scene(path):
    """The data of a page's one scene."""
    found = re.search(r'id="manifest">(.*?)</script>', path.read_text(), re.DOTALL)
    (one,) = json.loads(found[1])["scenes"]
    return one


@pytest.mark.parametrize("name", ["attention.html", "ATTENTION.HTML", "attention.htm"])
def test_a_name_that_ends_in_html_is_a_page(trace, tmp_path, name):
    path = trace.save(tmp_path / name)
    assert path == tmp_path / name and path.read_text().startswith("<!doctype html>")
    assert [site["name"] for site in scene(path)["sites"]] == trace.names()


def test_options_are_those_of_a_page(trace, tmp_path):
    path = trace.save(str(tmp_path / "a.html"), title="two layers", example=1)
    found = scene(path)
    assert found["title"] == "two layers (example 1 of 2)"
    peaks = [float(weights) for weights in trace[0].weights()[1].amax((1, 2))]
    assert found["sites"][0]["peak"] == pytest.approx(peaks)


def test_a_record_saves_itself(trace, tmp_path):
    found = scene(trace[1].save(tmp_path / "a.html"))
    assert [site["name"] for site in found["sites"]] == [trace[1].name]
    loaded = regard.load_trace(trace[1].save(tmp_path / "a.safetensors"))
    assert loaded.names() == [trace[1].name]
    assert torch.equal(loaded[0].weights(), trace[1].weights())


def test_other_names_are_data_or_refused_as_before(trace, tmp_path):
    assert regard.load_trace(trace.save(tmp_path / "a.safetensors")).names() == trace.names()
    with pytest.raises(
        RegardError, match=r"'a\.docx': a trace is saved as \.safetensors, and its page as \.html"
    ):
        trace.save(tmp_path / "a.docx")
    with pytest.raises(RegardError, match=r"save: title: options of a page, but 'a\.safetensors'"):
        trace.save(tmp_path / "a.safetensors", title="x")
    with pytest.raises(RegardError, match="there is no folder"):
        trace.save(tmp_path / "nowhere" / "a.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors"]


def test_what_has_no_weights_says_why(tmp_path):
    with pytest.raises(RegardError, match=r"the trace is empty: trace\.notes says why"):
        Trace().save(tmp_path / "a.html")
    dropped = record("a")
    dropped.drop()
    with pytest.raises(RegardError, match="dropped"):
        dropped.save(tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_a_notebook_gets_a_frame_or_the_table(trace):
    assert trace._repr_html_().startswith("<iframe ")
    assert trace[0]._repr_html_().startswith("<iframe ")
    two_runs = three_layers_twice()._repr_html_()
    assert "<iframe" in two_runs or "<table" in two_runs
    assert "<table" in Trace()._repr_html_()


def test_showing_needs_no_extra():
    """Neither rich nor matplotlib nor numpy is asked for."""
    import subprocess
    import sys

    code = (
        "import sys, torch, regard\n"
        "for name in ('matplotlib', 'rich', 'typer', 'starlette', 'uvicorn', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "from torch import nn\n"
        "model = nn.MultiheadAttention(8, 2, batch_first=True).eval()\n"
        "x = torch.randn(1, 3, 8)\n"
        "with torch.no_grad(), regard.capture(model) as trace:\n"
        "    model(x, x, x)\n"
        "assert trace._repr_html_().startswith('<iframe'), trace._repr_html_()[:300]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
