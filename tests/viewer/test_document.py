"""One file: its policy, its script, and tokens that are data."""

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from regard.record import Record, Trace
from regard.viewer import page
from regard.viewer.document import policy, script, style
from regard.viewer.scene import PageOptions, Scene, scenes_of

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "\u2028\u2029",
    "\ud800",
    "\"'\\",
]


class Reader(HTMLParser):
    """What a page is made of: tags, and the text of each script and style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.texts: list[tuple[dict, str]] = []
        self.policy = ""
        self._inside = None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags[tag] += 1
        assert not [name for name in found if name.startswith("on") or name == "style"], tag
        self._inside = found if tag in ("script", "style") else None
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is not None:
            self.texts.append((self._inside, data))


def trace_of(tokens):
    size = len(tokens)
    return Trace(list(_records(size))).with_tokens(tokens)


def _records(size):
    for site in Scene.of(torch.full((1, 2, size, size), 1 / size)).sites:
        assert isinstance(site.record, Record)
        yield site.record


class TestDocument:
    def test_hostile_tokens_stay_inside_the_manifest(self):
        plain = Reader(page(trace_of(["a"] * len(HOSTILE))).html)
        found = Reader(page(trace_of(HOSTILE), title=HOSTILE[0]).html)
        assert found.tags == plain.tags
        (manifest,) = [text for about, text in found.texts if about.get("id") == "manifest"]
        scene = json.loads(manifest)["scenes"][0]
        assert scene["sequences"][0]["tokens"] == HOSTILE

    def test_the_policy_names_what_is_there(self):
        found = Reader(page(trace_of(["a", "b"])).html)
        ours = [
            text for about, text in found.texts if not about.get("type", "").startswith(("a", "t"))
        ]
        assert ours == [style(), script()] or sorted(ours) == sorted([style(), script()])
        for text in ours:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in found.policy
        assert found.policy == policy()
        assert "unsafe" not in found.policy
        assert "connect-src 'none'" in found.policy
        assert "default-src 'none'" in found.policy

    def test_two_traces_share_one_file(self):
        found = Reader(page([trace_of(["a", "b"]), trace_of(["c", "d", "e"])]).html)
        (manifest,) = [text for about, text in found.texts if about.get("id") == "manifest"]
        first, second = json.loads(manifest)["scenes"]
        assert first["first_chunk"] == 0
        assert second["first_chunk"] > 0
        assert len(second["sequences"][0]["tokens"]) == 3
        with pytest.raises(RegardError, match="3 traces, expected one, or two"):
            page([trace_of(["a"])] * 3)

    def test_no_address_of_anywhere(self):
        html = page(trace_of(["a", "b"])).html
        outside = re.findall(r"https?://[^\s\"'`)]+", html)
        assert set(outside) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


class TestSave:
    def test_a_file(self, tmp_path):
        made = page(trace_of(["a", "b"]), title="ab")
        assert made.save(tmp_path / "a.html").read_text() == made.html
        assert repr(made).startswith("Page('ab', 0.")

    def test_wrong_paths(self, tmp_path):
        made = page(trace_of(["a", "b"]))
        with pytest.raises(RegardError, match=r"expected \.html"):
            made.save(tmp_path / "a.png")
        with pytest.raises(RegardError, match="there is no folder"):
            made.save(tmp_path / "nowhere" / "a.html")

    def test_passes_that_are_no_generation(self, tmp_path):
        model, x = nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), torch.randn(1, 4, 8)
        with regard.capture(model) as trace:
            model(x)
            model(x)
        said = r"page: the trace has 2 passes of the model; take one, as trace\.steps\[0\], or put"
        with pytest.raises(RegardError, match=said):
            trace.save(tmp_path / "x.html")


class TestPair:
    def test_each_has_a_title_of_its_own(self):
        found = Reader(page([trace_of(["a"]), trace_of(["b"])], title=["one", "two"]).html)
        (manifest,) = [text for about, text in found.texts if about.get("id") == "manifest"]
        assert [scene["title"] for scene in json.loads(manifest)["scenes"]] == ["one", "two"]
        with pytest.raises(RegardError, match="1 titles, expected 2"):
            page([trace_of(["a"]), trace_of(["b"])], title=["one"])

    def test_an_example_of_a_batch_is_said(self):
        made = page(torch.full((3, 1, 2, 2), 0.5), example=1, title="three")
        assert made.title == "three (example 1 of 3)"

    def test_words_that_are_none(self, without_shape_checks):
        with pytest.raises(RegardError, match="expected Words, or a list of them"):
            page(trace_of(["a"]), words="a")


class TestRuns:
    """One view of two runs and their difference."""

    @staticmethod
    def trace(seed, size=4, names=("a", "b")):
        torch.manual_seed(seed)
        layers = [torch.randn(1, 2, size, size).softmax(-1) for _ in names]
        return Trace([site.record for site in Scene.of(layers).sites])

    def test_the_difference_is_exact(self):
        before, after = self.trace(0), self.trace(1)
        (scene,) = scenes_of([before, after], PageOptions(runs=("plain", "edited")))
        assert [part.label for part in scene.parts] == ["plain", "edited", "difference"]
        assert [part.sites for part in scene.parts] == [[0, 1], [2, 3], [4, 5]]
        for number in range(2):
            record = scene.sites[4 + number].record
            assert record.kind == "signed"
            expected = after[number].weights() - before[number].weights()
            assert torch.equal(record.weights(), expected)
        found = Reader(page([before, after], runs=("plain", "edited")).html)
        (manifest,) = [text for about, text in found.texts if about.get("id") == "manifest"]
        parts = json.loads(manifest)["scenes"][0]["parts"]
        assert [sorted(part["maps"]) for part in parts] == [
            ["max", "mean", "rollout"],
            ["max", "mean", "rollout"],
            ["max", "mean"],
        ]

    def test_runs_that_cannot_be_compared(self):
        for attention, runs, text in (
            (self.trace(0), ("a", "b"), "but one trace, expected a list of two traces"),
            ([self.trace(0), self.trace(1)], ("a",), "expected two names, as"),
            ([self.trace(0), self.trace(1, 5)], ("a", "b"), "expected texts of the same length"),
            ([self.trace(0), self.trace(1, names="abc")], ("a", "b"), "of the same model"),
        ):
            with pytest.raises(RegardError, match=text):
                page(attention, runs=runs)
