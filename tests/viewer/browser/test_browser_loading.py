"""Saved pages open from disk: no error, nothing asked of a network, tokens shown and never run."""

import re

import pytest
import torch
from playwright.sync_api import expect
from viewer_traces import HOSTILE

from regard.aggregate import Words
from regard.viewer import page

TRACES = ["sentence", "graded", "licence", "story", "translation", "speech", "disc", "reaction"]
RARE = ["graded", "licence", "story", "disc", "reaction"]
VIEWS = ["map", "matrix", "lines", "text"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in RARE else []) for name in TRACES],
)
def test_every_view_of_every_model_opens(open_page, request, name):
    """The fixture fails what logs an error or leaves the machine."""
    looking = open_page(request.getfixturevalue(f"{name}_trace"))
    assert looking.page.evaluate("performance.getEntriesByName('first-picture').length") == 1
    views = [*VIEWS, "image"] if name == "disc" else VIEWS
    for view in views:
        looking.view(view)
        looking.page.wait_for_timeout(150)
    assert {address.split(":")[0] for address in looking.requests} <= {"file", "data", "blob"}
    assert len([address for address in looking.requests if address.startswith("file")]) == 1


def test_the_guard_would_notice(open_page, sentence_trace, tmp_path):
    """A page that logs an error and asks the network is caught by what every test runs under."""
    path = tmp_path / "bad.html"
    path.write_text(
        "<img src=http://127.0.0.1:9/x.png><script>console.error('bad'); nowhere()</script>"
    )
    looking = open_page(path, wait=False)
    looking.page.wait_for_timeout(200)
    said = "\n".join(looking.problems())
    assert "console: bad" in said and "nowhere is not defined" in said
    assert "a request to http://127.0.0.1:9/x.png" in said
    looking.errors.clear()
    looking.requests.clear()


def policy(looking) -> dict[str, str]:
    meta = looking.page.locator("meta[http-equiv='Content-Security-Policy']")
    rules = meta.get_attribute("content").split(";")
    return dict(rule.strip().split(" ", 1) for rule in rules)


def test_the_policy_is_strict(open_page, sentence_trace):
    rules = policy(open_page(sentence_trace))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
    assert set(rules["img-src"].split()) == {"data:", "blob:"}


INJECTED = {
    "a script": "const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
    " document.body.append(s)",
    "a handler": "document.body.setAttribute('onclick', 'window.ran = 1'); document.body.click()",
    "markup": "document.body.insertAdjacentHTML('beforeend', '<img src=data:x onerror=ran=1>')",
    "an evaluated text": "setTimeout('window.ran = 1')",
    "a frame": "const f = document.createElement('iframe'); f.src = 'data:text/html,<p>x';"
    " document.body.append(f)",
    "a style": "const s = document.createElement('style'); s.textContent = 'html{display:none}';"
    " document.head.append(s)",
    "a request": "fetch('http://127.0.0.1:9/').catch(() => {})",
}


@pytest.mark.parametrize("what", INJECTED)
def test_the_policy_holds(open_page, sentence_trace, what):
    """What somebody manages to put into the page is not run, applied or fetched."""
    looking = open_page(sentence_trace)
    looking.page.evaluate(
        "() => { window.broken = []; document.addEventListener('securitypolicyviolation',"
        " event => window.broken.push(event.effectiveDirective)); }"
    )
    looking.page.evaluate(f"() => {{ {INJECTED[what]} }}")
    looking.until("window.broken.length > 0")
    assert looking.page.evaluate("window.ran") is None
    assert looking.page.evaluate("getComputedStyle(document.documentElement).display") != "none"
    assert any("Content Security Policy" in error for error in looking.errors)
    looking.errors.clear()
    looking.requests.clear()


def shown(token: str) -> str:
    """A token as far as a page can show it: without what has no glyph."""
    return re.sub(r"[\x00-\x20\u202a-\u202e\u2066-\u2069]", "", token)


def test_hostile_tokens_are_shown_and_never_run(open_page, hostile_trace):
    looking = open_page(hostile_trace, "view=text")
    for place, token in enumerate(HOSTILE):
        text = looking.by(f"text-word-{place}").text_content()
        assert shown(token) in shown(text) or shown(text).rstrip("…") in shown(token), token
        assert text.strip(), "an empty token is marked, so that it can be seen and clicked"
    for view in VIEWS:
        looking.view(view)
        looking.page.wait_for_timeout(100)
    assert looking.page.evaluate("document.images.length") == 0
    assert looking.page.title() == hostile_trace.options["title"]
    assert looking.page.locator("script").count() == looking.page.evaluate(
        "document.querySelectorAll('script[id^=chunk-], #manifest').length + 1"
    )
    assert not looking.dialogs


OUTSIDE = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let text = "";
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.parentElement.closest("bdi, script, option")) text += node.data;
  }
  return text;
}"""


@pytest.mark.parametrize("view", VIEWS)
def test_tokens_cannot_reorder_the_text_around_them(open_page, tmp_path, view):
    """Controls of direction stay inside an isolated element, or become codes."""
    tokens = ["a", "\u2069\u202enihton", "\u2066b", "c"]
    weights = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    path = page(weights, words=Words.each(tokens)).save(tmp_path / "tokens.html")
    looking = open_page(path, f"view={view}&selected=1&pinned=true&layer=0")
    if view == "matrix":
        looking.hover_cell(1, 2)
        assert r"\u2069\u202enihton" in looking.tooltip()
    outside = looking.page.evaluate(OUTSIDE)
    bare = re.sub(r"\u2068[^\u2068\u2069]*\u2069", "", outside)
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069]", bare), ascii(bare)


def test_hostile_tokens_keep_lines_and_tooltips_whole(open_page, hostile_trace):
    looking = open_page(hostile_trace, "view=lines")
    looking.by("lines-row-0").hover()
    expect(looking.by("lines-row-0")).to_contain_text("</script><img")
    width = looking.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 1280, "a very long token does not push the page sideways"


def test_a_map_that_cannot_be_painted_says_so(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=map")
    looking.page.evaluate(
        "() => { CanvasRenderingContext2D.prototype.putImageData ="
        " () => { throw new Error('there is no memory') } }"
    )
    looking.by("theme-toggle").click()
    looking.by("theme-toggle").click()
    expect(looking.page.get_by_role("alert")).to_contain_text("there is no memory")


NARROW = ["view=map", "view=matrix&layer=3&head=1", "view=lines&layer=3&head=1", "view=text"]


@pytest.mark.parametrize("fragment", NARROW)
def test_a_screen_of_390_pixels(open_page, sentence_trace, fragment):
    looking = open_page(sentence_trace, fragment, width=390, height=844)
    looking.page.wait_for_timeout(150)
    assert looking.page.evaluate("document.documentElement.scrollWidth") <= 390
    choice = "sort-select" if "map" in fragment else "layer-select"
    for control in ("view-tab-map", "view-tab-lines", choice, "unit-toggle"):
        looking.reach(control)
        box = looking.by(control).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390.5, f"{control} is cut off"


def test_controls_work_on_a_screen_of_390_pixels(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=0&head=0", width=390, height=844)
    looking.reach("layer-select")
    looking.choose("layer-select", "3")
    looking.reach("head-select")
    looking.choose("head-select", r"\b1\b")
    looking.reach("unit-toggle")
    looking.by("unit-toggle").click()
    state = looking.hash()
    assert (state["layer"], state["head"], state["unit"]) == ("3", "1", "words")
