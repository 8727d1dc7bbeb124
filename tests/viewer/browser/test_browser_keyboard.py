"""Everything without a mouse."""

import pytest
from playwright.sync_api import expect


def press(looking, *keys: str) -> dict[str, str]:
    """Press keys one after the other; the state afterwards."""
    for key in keys:
        looking.page.keyboard.press(key)
    return looking.hash()


def test_views_by_number(open_page, disc_trace):
    looking = open_page(disc_trace)
    for key, view in enumerate(["map", "matrix", "lines", "text", "image"], 1):
        looking.page.keyboard.press(str(key))
        expect(looking.by(f"view-tab-{view}")).to_have_attribute("aria-selected", "true")


def test_from_the_map_to_a_head_and_back(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    state = press(looking, "ArrowRight", "ArrowRight", "ArrowDown", "Enter")
    assert state["view"] == "matrix" and "layer" in state and "head" in state
    expect(looking.by("matrix-canvas")).to_be_visible()
    assert press(looking, "1").get("view", "map") == "map"


def test_layers_and_heads(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=2&head=4")
    assert press(looking, "]")["layer"] == "3"
    assert press(looking, "[", "[")["layer"] == "1"
    assert press(looking, ".")["head"] == "5"
    assert press(looking, ",", ",")["head"] == "3"


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [("w", "unit", "words"), ("s", "special", "folded"), ("l", "colour", "log")],
)
def test_switches(open_page, sentence_trace, key, name, value):
    looking = open_page(sentence_trace, "view=matrix")
    assert press(looking, key)[name] == value
    if name == "special":
        assert press(looking, key)[name] == "hidden"
    assert name not in press(looking, key)


def test_modes_and_themes_cycle(open_page, graded_trace):
    looking = open_page(graded_trace, "view=matrix&layer=2")
    assert [press(looking, "m").get("mode", "head") for _ in range(5)] == [
        "mean",
        "max",
        "rollout",
        "relevance",
        "head",
    ]
    assert len({press(looking, "t").get("theme", "auto") for _ in range(3)}) >= 2


def test_the_crosshair_of_the_matrix(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1")
    looking.by("matrix-canvas").focus()
    press(looking, "ArrowDown", "ArrowDown", "ArrowRight")
    row, column = looking.hovered_cell()
    press(looking, "ArrowDown", "ArrowRight", "ArrowRight")
    assert looking.hovered_cell() == (row + 1, column + 2)
    assert press(looking, "Enter")["selected"] == str(row + 1)
    assert "selected" not in press(looking, "Escape")
    said = looking.page.locator("[aria-live]")
    assert any(":" in text for text in said.all_inner_texts()), "it is read out"


def test_zoom(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1")
    looking.by("matrix-canvas").focus()
    for keys, zoomed in (("++", True), ("0", False), ("+", True), ("--", False)):
        press(looking, *keys)
        assert (looking.zoom() is not None) is zoomed, keys


def test_lines(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&layer=3&head=1")
    looking.by("lines-row-0").focus()
    press(looking, "ArrowDown", "ArrowDown")
    expect(looking.by("lines-row-2")).to_be_focused()
    assert press(looking, "Space")["selected"] == "2"
    assert press(looking, "ArrowDown", "Space")["selected"] == "2,3"
    assert press(looking, "Enter")["pinned"] == "true"
    press(looking, "ArrowRight")
    expect(looking.by("lines-column-3")).to_be_focused()
    assert press(looking, "h")["hidden"] == "3"


def test_words_of_the_text(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=text&layer=3&head=1")
    looking.by("text-word-0").focus()
    state = press(looking, "ArrowRight", "ArrowRight", "Space")
    assert state["selected"] == "2"
    expect(looking.by("text-word-2")).to_be_focused()
    assert "selected" not in press(looking, "Escape")


def test_the_steps_of_a_generation(open_page, story_trace):
    looking = open_page(story_trace, "view=matrix&layer=2&step=3")
    assert press(looking, "g")["step"] == "4"
    assert press(looking, "Shift+G")["step"] == "3"


def test_the_help(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    looking.page.keyboard.press("?")
    expect(looking.page.locator("dialog[open]")).to_be_visible()
    looking.page.keyboard.press("Escape")
    expect(looking.page.locator("dialog[open]")).to_have_count(0)


def test_exports_by_keyboard(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1")
    looking.page.keyboard.press("e")
    expect(looking.by("export-csv")).to_be_visible()
    with looking.page.expect_download() as download:
        looking.by("export-csv").focus()
        looking.page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".csv")


def test_every_control_is_reached_with_tab_and_is_seen_to_be(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1")
    reached, unseen = set(), []
    for _ in range(80):
        looking.page.keyboard.press("Tab")
        name, ring = looking.focused()
        reached.add(name)
        if name and not ring:
            unseen.append(name)
    wanted = {"layer-select", "mode-select", "head-select", "unit-toggle", "special-select"}
    wanted |= {"colour-toggle", "theme-toggle", "copy-link", "help-button", "matrix-canvas"}
    assert wanted <= reached, wanted - reached
    assert any(str(name).startswith("view-tab-") for name in reached)
    assert not unseen, f"no focus ring on {set(unseen)}"


def test_keys_do_nothing_while_a_number_is_typed(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&layer=3&head=1")
    looking.by("limit-value").focus()
    assert press(looking, "1")["view"] == "lines"
