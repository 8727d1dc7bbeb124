"""Traces, records and pages show themselves in a notebook, and in what it is exported to."""

import functools
import re
from html import unescape
from html.parser import HTMLParser

import nbformat
import pytest
import torch
from browser.conftest import browser as browser
from torch import nn
from viewer_traces import HOSTILE

import regard
from regard.recipe import Given
from regard.record import Note
from regard.viewer import notebook, page
from regard.viewer.frame import framed
from regard.viewer.notebook import shown

CELLS = [
    """
    import torch
    from torch import nn
    import regard

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    words = ["[CLS]", "un", "##believ", "##able", "</script><b>news</b>", "'quoted' & \\"so\\""]
    with torch.no_grad(), regard.capture(model, tokens=words) as trace:
        model(torch.randn(1, 6, 16))
    trace
    """,
    "trace[0]",
    "from regard.viewer import page\npage(trace, title='of my own')",
    "trace.plot()",
    "regard.Trace()",
]


@functools.cache
def executed():
    """The notebook after its cells ran in a kernel."""
    from inspect import cleandoc

    from nbclient import NotebookClient

    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(cleandoc(cell)) for cell in CELLS]
    return NotebookClient(made, timeout=120, kernel_name="python3").execute()


def output(number):
    """What one cell shows, by MIME type."""
    (found,) = executed().cells[number]["outputs"]
    assert found["output_type"] == "execute_result"
    return found["data"]


def exported():
    """The notebook as HTML: its cells alone, since the whole template asks for scripts outside."""
    from nbconvert import HTMLExporter

    body, _ = HTMLExporter(template_name="basic").from_notebook_node(executed())
    return f"<!doctype html><meta charset='utf-8'><title>exported</title><body>{body}</body>"


class Frames(HTMLParser):
    """Attributes of the frames in a text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.tags = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "iframe":
            self.found.append(dict(attrs))


@pytest.mark.parametrize("cell", [0, 1, 2])
def test_a_cell_shows_a_page_in_a_frame(cell):
    data = output(cell)
    (one,) = Frames(data["text/html"]).found
    assert set(one["sandbox"].split()) == {"allow-scripts", "allow-downloads"}
    assert (
        one["srcdoc"].startswith("<!doctype html>") and "Content-Security-Policy" in one["srcdoc"]
    )
    assert "src" not in one and one["title"]
    assert len(data["text/html"]) < 1_000_000


def test_a_terminal_still_gets_the_table():
    assert output(0)["text/plain"].startswith("Trace of 2 attentions")
    assert output(1)["text/plain"].startswith("Record('layers.0.self_attn'")
    assert "image/png" in output(3)
    assert (
        "the trace is empty" in output(4)["text/html"] and "<iframe" not in output(4)["text/html"]
    )


@pytest.fixture
def exported_path(tmp_path):
    """Before the browser, since nbclient and Playwright each want the thread's event loop."""
    path = tmp_path / "exported.html"
    path.write_text(exported(), encoding="utf-8")
    return path


def test_the_exported_notebook_opens_in_a_browser(exported_path, browser):
    said, asked = [], []
    tab = browser.new_page(viewport={"width": 1000, "height": 900})
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(exported_path.as_uri())
    inside = [one for one in tab.frames if one != tab.main_frame]
    assert len(inside) == 3
    for one in inside:
        one.frame_element().scroll_into_view_if_needed()  # what is out of sight is not drawn
        # A selector: the page's own policy lets no function be evaluated in it.
        one.wait_for_selector("html[data-ready='1']", timeout=30_000)
        one.get_by_test_id("view-tab-text").click()
        one.get_by_text("##believ").first.wait_for()  # the view is drawn a frame after the click
        one.get_by_text("</script><b>news</b>").first.wait_for()
        one.get_by_test_id("unit-toggle").get_by_text("Words").click()
        one.get_by_text("unbelievable").wait_for()
        assert one.locator("b", has_text="news").count() == 0
    assert "of my own" in inside[2].locator("body").inner_text()
    tab.close()
    assert not said
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def given(weights, **options):
    """A record of weights as they are, (batch, head, query, key)."""
    site = regard.record.Site("layer.0", "Layer", "", "given", attends="self")
    from regard.record.stored_attention import StoredRecipe

    recipe = Given(weights, None, "distribution")
    held = options.pop("held", StoredRecipe(recipe))
    return regard.Record(
        site, held, shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype, **options
    )


def test_what_is_shown_is_the_page():
    """The attribute holds every letter of the page, whatever its tokens say."""
    size = len(HOSTILE)
    record = given(torch.rand(1, 2, size, size).softmax(-1)).with_tokens(HOSTILE, HOSTILE)
    (one,) = Frames(shown(record)).found
    assert one["srcdoc"] == page(record, budget=notebook.BUDGET).html
    assert Frames(shown(record)).tags == {"iframe"}


def test_a_frame_cannot_be_left():
    html = "<p title='\"'>&lt; ' \" &#39; </iframe><script>alert(1)</script>"
    made = framed(html, height=321)
    (one,) = Frames(made).found
    assert one["srcdoc"] == html and "height: 321px" in one["style"]
    assert Frames(made).tags == {"iframe"}


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_what_cannot_be_shown_is_a_table_with_the_reason(monkeypatch):
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 5, 8)
    with regard.capture(model, max_bytes=0) as dropped:
        model(x, x, x)
    said = dropped._repr_html_()
    assert "<table" in said and "trace.notes says why" in said and "<iframe" not in said
    assert "<table" in dropped[0]._repr_html_()
    empty = regard.Trace(notes=[Note("empty", "", "no <b>attention</b> was seen")])
    said = empty._repr_html_()
    assert "no &lt;b&gt;attention" in said and "the trace is empty" in said
    with regard.capture(model) as trace:
        model(x, x, x)
    monkeypatch.setattr(notebook, "_MOST", 10)
    said = unescape(trace._repr_html_())
    assert "50 weights are too many for a notebook" in said and "<table" in said
    assert "trace.save('attention.html') writes one" in said
    assert "record.save('attention.html')" in unescape(trace[0]._repr_html_())


def test_a_display_never_raises(monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("<b>not</b> seen before")

    monkeypatch.setattr(notebook, "page", broken)
    said = given(torch.eye(3)[None, None])._repr_html_()
    assert "ZeroDivisionError: &lt;b&gt;not" in said and "<table" in said


def test_a_page_larger_than_a_notebook_should_keep_is_not_shown(monkeypatch):
    record = given(torch.rand(1, 2, 40, 40).softmax(-1))
    assert "<iframe" in shown(record)
    monkeypatch.setattr(notebook, "_LARGEST", 1000)
    assert re.search(r"its page has [\d.]+ [kM]B", shown(record)) and "<table" in shown(record)


def test_a_long_trace_stays_small(licence_trace):
    """Six layers, twelve heads, 512 tokens: 19 million weights."""
    made = licence_trace.trace._repr_html_()
    assert "<iframe" in made and len(made) < 1.1 * notebook._LARGEST
