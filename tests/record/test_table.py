"""The table of a trace, in a terminal and in a notebook."""

import re
from html.parser import HTMLParser

import pytest
import torch
from record_examples import dot, record, three_layers_twice, words
from torch import nn

import regard
from regard.record import Note, OtherSoftmax, Trace
from regard.record.table import html, size


def test_every_site_is_a_row():
    trace = Trace([record("encoder.0", attends="self"), record("decoder.0.cross", attends="cross")])
    title, header, rule, *rows = repr(trace).splitlines()
    assert title == f"Trace of 2 attentions, {size(trace.nbytes)} held"
    for name in ("site", "attends", "kind", "heads", "queries × keys", "held"):
        assert name in header
    assert set(rule) == {"-", " "}
    assert re.fullmatch(r"encoder\.0 +self +distribution +2 +2 +3 × 5 +recipe, 992 B", rows[0])
    assert rows[1].startswith("decoder.0.cross  cross") and len(rows) == 2
    column = header.index("kind")
    assert all(row[column:].startswith("distribution") for row in rows)


def test_calls_of_a_site_share_a_row():
    trace = Trace(
        [record("layer", dot(n, 1, n), call=n, step=n - 1, attends="self") for n in (1, 2, 3)]
    )
    title, _, _, row = repr(trace).splitlines()
    assert title.startswith("Trace of 1 attention in 3 calls,")
    assert row.startswith("layer ×3") and "1 × 1–3" in row


def test_one_attention_is_singular():
    assert repr(Trace([record("a")])).startswith("Trace of 1 attention, ")


def test_many_sites_leave_the_middle_out():
    trace = Trace([record(f"layer.{n}") for n in range(100)])
    lines = repr(trace).splitlines()
    assert len(lines) < 50 and "… 60 more …" in repr(trace)
    assert any(line.startswith("layer.0 ") for line in lines)
    assert lines[-1].startswith("layer.99 ") and "layer.50 " not in repr(trace)
    assert "… 60 more …" in html(trace)


def test_notes_and_gates_are_told():
    other = OtherSoftmax(
        "router", "Router", "x.py:1", (2, 3), "the softmax axis comes from a parameter"
    )
    note = Note("unread", "layer.3", "the operator my::flash looks like attention")
    trace = Trace(list(three_layers_twice()), notes=[note, note], other_softmaxes=[other] * 3)
    for said in (repr(trace), html(trace)):
        assert said.count("layer.3: the operator my::flash") == 1
        assert "1 softmax not taken for attention (router): trace.other_softmaxes" in said


def test_an_empty_trace():
    said = repr(Trace(notes=[Note("empty", "", "no attention was seen")]))
    assert said.startswith("Trace of 0 attentions, 0 B held")
    assert "note: no attention was seen" in said


@pytest.mark.filterwarnings("ignore::regard.CaptureWarning")
def test_what_is_held_is_said():
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = words(1, 5, 8)
    held = {}
    for keep, most in (
        ("recipe", None),
        ("weights", None),
        ([regard.Entropy()], None),
        ("recipe", 0),
    ):
        with regard.capture(model, keep=keep, max_bytes=most) as trace:
            model(x, x, x)
        held[trace[0].held] = repr(trace).splitlines()[3]
    assert set(held) == {"recipe", "weights", "reductions", "dropped"}
    for name, row in held.items():
        assert re.search(rf" {name}(, [\d.]+ k?B)?$", row)


class Reader(HTMLParser):
    """Counts tags and joins text."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data


def test_html_is_the_same_table():
    trace = three_layers_twice()
    reader = Reader()
    reader.feed(html(trace))
    assert reader.tags.count("table") == 1 and reader.tags.count("tr") == 4
    assert reader.tags.count("th") == 7 and reader.tags.count("td") == 21
    assert "encoder.layer.2 ×2" in reader.text


def test_names_are_data_never_markup():
    """A module may be called anything; in a notebook its name must not run."""

    class Evil(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(
                "<script>alert('x')</script>", nn.MultiheadAttention(8, 2, batch_first=True)
            )

        def forward(self, x):
            (attention,) = self.children()
            return attention(x, x, x)

    model = Evil()
    with regard.capture(model) as trace:
        model(words(1, 3, 8))
    trace.notes.append(Note("unseen", "<b>", "<img src=x onerror=alert(1)>"))
    trace.other_softmaxes.append(OtherSoftmax("<i>", "A", "b", (1,), "c"))
    page = html(trace)
    reader = Reader()
    reader.feed(page)
    assert "&lt;script&gt;" in page and not {"script", "img", "b", "i"} & set(reader.tags)
    assert "<script>alert('x')</script>" in repr(trace)


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1234567, "1.2 MB"), (5_400_000_000, "5.4 GB")],
)
def test_sizes_for_people(count, said):
    assert size(count) == said


def test_a_row_counts_shared_memory_once():
    keys = torch.randn(1, 2, 6, 4)
    trace = Trace(
        [record("layer", regard.recipe.Dot(keys, keys), call=n, step=n) for n in range(1, 4)]
    )
    assert trace.nbytes == keys.nbytes
    assert repr(trace).endswith(f"recipe, {keys.nbytes} B")
