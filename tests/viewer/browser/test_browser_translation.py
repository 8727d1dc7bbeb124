"""Translations in a browser: a saved page of one, and `regard serve` with a translator."""

import re
from html import unescape
from itertools import pairwise
from urllib.parse import quote

import pytest
import torch
from looking import agrees
from playwright.sync_api import expect
from serving_live import look, served
from small_translators import LONG, LOVE, saved_translator, translator
from test_browser_access import faults

from regard.translate.translator import Translator

MODELS = ["bahdanau", "transformer"]
SOURCE = "[data-testid^=lines-column-]"
TARGET = "[data-testid^=lines-row-]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A translation and the page of it, for each model."""
    folder, made = tmp_path_factory.mktemp("translations"), {}
    for name in MODELS:
        found = translator(name)(LOVE)
        made[name] = found, found.save(folder / f"{name}.html")
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return saved_translator(tmp_path_factory.mktemp("checkpoints") / "small.safetensors")


@pytest.fixture(scope="module")
def address(browser, checkpoint):
    """Where a server with this translator and another model is."""
    yield from served("minilm", "--translator", str(checkpoint))


def words(looking, selector):
    names = looking.page.locator(f"{selector} .lines-name")
    names.first.wait_for()  # drawn a frame after the click
    return names.all_inner_texts()


# -- a saved page


@pytest.mark.parametrize("name", MODELS)
def test_it_opens_with_the_alignment_between_words(open_page, pages, name):
    found, path = pages[name]
    looking = open_page(path)
    expect(looking.by("matrix-canvas")).to_be_visible()
    looking.hover_cell(1, 2)
    assert agrees(looking.hovered_weight(), float(found.matrix.weights[1, 2]))
    looking.view("lines")
    assert words(looking, SOURCE)[:-1] == found.matrix.source
    count = len(found.matrix.target)
    assert words(looking, TARGET)[:count] == found.matrix.target
    expect(looking.page.locator(".lines-role")).to_have_text(["Source", "Translation"])
    left, right = (looking.page.locator(s).first.bounding_box()["x"] for s in (SOURCE, TARGET))
    assert left < right, "it is read from the source to the translation"
    for row, column in [(0, 0), (1, 2), (count - 1, 5)]:
        looking.by(f"lines-row-{row}").hover()
        shown = looking.side_weight(f"lines-column-{column}")
        assert agrees(shown, float(found.matrix.weights[row, column])), (row, column, shown)
        looking.by(f"lines-column-{column}").hover()
        shown = looking.side_weight(f"lines-row-{row}")
        assert agrees(shown, float(found.matrix.weights[row, column])), (row, column, shown)


def test_it_speaks_of_words_and_offers_no_choice_of_one(open_page, pages):
    looking = open_page(pages["bahdanau"][1], "view=lines")
    captions = looking.page.locator(".lines-caption")
    expect(captions).to_have_text(["words looked at", "words that look"])
    expect(looking.page.locator(".lines-hint")).to_contain_text("Hover a word for its lines")
    expect(looking.by("limit-value")).to_have_attribute("aria-label", "How many lines a word")
    for select in ("layer-select", "mode-select", "head-select"):
        expect(looking.by(select)).to_be_hidden()
    looking.page.keyboard.press("w")
    expect(looking.by("limit-value")).to_have_attribute("aria-label", "How many lines a token")
    expect(captions).to_have_text(["tokens looked at", "tokens that look"])
    looking = open_page(pages["transformer"][1])
    for select in ("layer-select", "mode-select", "head-select"):
        expect(looking.by(select)).to_be_visible()


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_numbers_is_the_matrix(open_page, pages, name):
    found, path = pages[name]
    looking = open_page(path, "view=matrix")
    kept = [row for row in looking.table() if "</s>" not in row.values()]
    got = torch.tensor([float(row["weight"]) for row in kept]).view_as(found.matrix.weights)
    torch.testing.assert_close(got, found.matrix.weights, atol=1e-6, rtol=0)
    assert [row["key_token"] for row in kept[: got.shape[1]]] == found.matrix.source


def test_the_axes_of_the_matrix_and_the_lines_of_a_picture(open_page, pages):
    looking = open_page(pages["bahdanau"][1], "view=matrix")
    picture = looking.downloaded("export-svg").read_text()
    assert "source →" in picture and "translation ↓" in picture
    looking.view("lines")
    looking.by("lines-row-1").hover()
    picture = unescape(looking.downloaded("export-svg").read_text())
    places = {
        text: float(x) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*>([^<]+)</text>', picture)
    }
    found = pages["bahdanau"][0].matrix
    assert places[found.source[1]] < places[found.target[1]]


def test_a_word_that_is_pointed_at_colours_the_other_text(open_page, pages):
    found, path = pages["bahdanau"]
    looking = open_page(path, "view=text")
    blocks = looking.page.locator(".text-block")
    assert blocks.locator("h2").all_inner_texts() == ["Source", "Translation"]
    assert blocks.first.locator(".word").first.inner_text() == found.matrix.source[0]
    weights = found.matrix.weights
    looking.by("text-word-0").hover()
    strongest = int(weights[0].argmax())
    expect(looking.page.locator(".text-hint")).to_contain_text(f"What “{found.matrix.target[0]}”")
    assert lightest(looking, "source", len(found.matrix.source)) == strongest
    looking.by(f"text-source-{strongest}").hover()
    expect(looking.page.locator(".text-hint")).to_contain_text("What attends to “")
    assert lightest(looking, "word", len(weights)) == int(weights[:, strongest].argmax())
    looking.page.mouse.move(2, 2)
    expect(looking.page.locator(".text-hint")).to_contain_text("Mean over all words")
    looking.by("text-word-2").click()
    looking.by("text-source-1").hover()
    assert agrees(looking.hovered_weight(), float(weights[2, 1])), "a click keeps it"


def lightest(looking, side, count):
    """The word with the strongest colour, which on light ground is the darkest."""
    return min(range(count), key=lambda place: looking.background(f"text-{side}-{place}"))


def test_it_is_read_again_word_by_word(open_page, pages):
    found, path = pages["bahdanau"]
    looking = open_page(path, "view=lines&unit=pieces")
    slider = looking.by("step-slider")
    slider.focus()
    slider.press("Home")
    expect(looking.page.locator(TARGET)).to_have_count(1)
    expect(looking.page.locator(".slider-legend")).to_be_hidden()
    slider.press("ArrowRight")
    expect(looking.page.locator(TARGET)).to_have_count(2)
    looking.by("lines-row-0").focus()
    looking.page.keyboard.press("g")
    expect(looking.page.locator(TARGET)).to_have_count(3)
    for _ in range(4):
        looking.page.keyboard.press("G")
    expect(looking.page.locator(TARGET)).to_have_count(1)
    assert looking.hash()["step"] == "1"
    slider.focus()
    slider.press("End")
    expect(looking.page.locator(TARGET)).to_have_count(len(found.words[1].pieces))


def test_the_keyboard_goes_from_side_to_side_as_they_stand(open_page, pages):
    looking = open_page(pages["bahdanau"][1], "view=lines")
    looking.by("lines-row-1").focus()
    looking.page.keyboard.press("ArrowRight")
    expect(looking.by("lines-row-1")).to_be_focused()
    looking.page.keyboard.press("ArrowLeft")
    expect(looking.by("lines-column-1")).to_be_focused()
    expect(looking.by("announcer")).to_contain_text("Source love, strongest")
    looking.page.keyboard.press("ArrowRight")
    expect(looking.by("lines-row-1")).to_be_focused()


def test_a_link_has_what_is_not_as_the_page_begins(open_page, pages):
    looking = open_page(pages["bahdanau"][1])
    looking.page.keyboard.press("w")
    assert looking.hash()["unit"] == "pieces"
    looking.view("map")
    assert looking.hash()["view"] == "map"
    again = open_page(pages["bahdanau"][1], looking.page.url.partition("#")[2])
    expect(again.by("view-tab-map")).to_have_attribute("aria-selected", "true")
    again.view("lines")
    assert words(again, SOURCE)[0].strip() != "" and again.hash()["unit"] == "pieces"


@pytest.mark.parametrize("view", ["lines", "text", "matrix"])
def test_a_narrow_screen_and_no_serious_fault(open_page, pages, axe, view):
    looking = open_page(pages["transformer"][1], f"view={view}", width=390, height=844)
    assert looking.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not faults(looking, axe)


# -- live


def choose_translator(looking):
    looking.by("live-model").select_option(label="small")
    expect(looking.by("live-run")).to_have_text("Translate")


def test_the_example_of_another_model_goes_but_never_what_was_typed(live):
    looking = live()
    text = looking.by("live-text")
    example = text.input_value()
    choose_translator(looking)
    assert example and text.input_value() == ""
    for typed in (LOVE, example):
        text.fill(typed)
        looking.by("live-model").select_option(label="MiniLM")
        choose_translator(looking)
        expect(text).to_have_value(typed)


def test_it_grows_word_by_word_and_ends_exact(live, checkpoint):
    looking = live("view=lines&unit=pieces")
    choose_translator(looking)
    looking.by("live-text").fill(LONG)
    looking.page.evaluate(
        """() => {
          window.seen = [];
          const note = () => {
            const rows = [...document.querySelectorAll("[data-testid^=lines-row-] .lines-name")];
            const text = rows.map((row) => row.textContent).join(" ");
            if (rows.length && window.seen.at(-1) !== text) window.seen.push(text);
          };
          new MutationObserver(note).observe(document.body, { childList: true, subtree: true });
        }"""
    )
    looking.by("live-run").click()
    expect(looking.by("live-progress")).to_contain_text("Translation: ", timeout=60_000)
    found = Translator.load(checkpoint)(LONG)
    expect(looking.by("live-progress")).to_have_text(f"Translation: {found.text}")
    seen = looking.page.evaluate("window.seen")
    assert len(seen) >= 4, f"what was on screen on the way: {seen}"
    assert any(not b.startswith(a) for a, b in pairwise(seen)), "words that were overtaken"
    expect(looking.by("status")).to_contain_text("every weight is kept exactly")
    assert words(looking, TARGET)[: len(found.matrix.target)] == found.matrix.target
    looking.by("lines-row-1").hover()
    shown = looking.side_weight("lines-column-2")
    assert agrees(shown, float(found.matrix.weights[1, 2])), shown
    kept = [row for row in looking.table() if "</s>" not in row.values()]
    got = torch.tensor([float(row["weight"]) for row in kept]).view_as(found.matrix.weights)
    torch.testing.assert_close(got, found.matrix.weights, atol=1e-6, rtol=0)


def test_a_link_translates_again(live, checkpoint):
    looking = live(f"model=small&text={quote(LOVE)}&view=text")
    expect(looking.by("live-progress")).to_contain_text("Translation: ", timeout=60_000)
    found = Translator.load(checkpoint)(LOVE)
    expect(looking.by("text-word-0")).to_have_text(found.matrix.target[0])
    expect(looking.by("text-source-1")).to_have_text("love")


def test_what_is_refused_and_what_is_cancelled(live):
    looking = live()
    choose_translator(looking)
    looking.by("live-text").fill("  ")
    looking.by("live-run").click()
    expect(looking.by("live-error")).to_contain_text("Type a text")
    look(looking, "the little cat " * 100)
    expect(looking.by("live-error")).to_contain_text("at most 200 are accepted")
    looking.errors.clear()  # the browser itself logs a refused request
    looking.page.route("**/api/translate", lambda route: None)  # an answer that never comes
    looking.by("live-text").fill(LOVE)
    looking.by("live-run").click()
    looking.by("live-cancel").click()
    expect(looking.by("live-progress")).to_have_text("Cancelled.")
    looking.page.unroute("**/api/translate")
    look(looking, LOVE)
    expect(looking.by("live-error")).to_be_hidden()
    expect(looking.by("live-progress")).to_contain_text("Translation: ")


def test_from_one_model_to_the_other_and_back(live):
    looking = live()
    expect(looking.by("thumb-5-11")).to_be_visible()
    choose_translator(looking)
    look(looking, LOVE)
    expect(looking.by("matrix-canvas")).to_be_visible()
    looking.view("lines")
    expect(looking.page.locator(".lines-role")).to_have_text(["Source", "Translation"])
    expect(looking.by("lines-column-1")).to_contain_text("love")
    looking.by("live-model").select_option(label="MiniLM")
    expect(looking.by("live-run")).to_have_text("Look")
    look(looking, LOVE)
    expect(looking.page.locator(".lines-role")).to_have_text(["Queries", "Keys"])


def test_typed_markup_is_shown_and_never_run(live):
    looking = live("view=text")
    choose_translator(looking)
    look(looking, "I </script><img src=x onerror=alert(1)> you")
    expect(looking.by("text-view")).to_contain_text("onerror")
    assert looking.page.evaluate("document.images.length") == 0 and not looking.dialogs


def test_the_live_page_on_a_narrow_screen(live, axe):
    looking = live("view=lines", width=390, height=844)
    choose_translator(looking)
    look(looking, LOVE)
    assert looking.page.evaluate("document.documentElement.scrollWidth") <= 390
    expect(looking.by("lines-row-0")).to_be_visible()
    assert not faults(looking, axe)
