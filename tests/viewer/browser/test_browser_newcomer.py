"""What somebody who sees the page for the first time expects of it."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from looking import agrees
from PIL import Image
from playwright.sync_api import expect
from serving_live import look, served

from regard.aggregate.statistics.report import TYPES
from regard.viewer import page

TEXT = "The cat sat on the mat because it was warm."
QUICKLY = """
keys => {
  for (const key of keys) {
    const options = { key, bubbles: true, cancelable: true };
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", options));
  }
}
"""


# -- two columns


@pytest.fixture(scope="module")
def pair(sentence_trace, story_trace, tmp_path_factory):
    """A page of 6 layers × 12 heads beside 5 layers × 9 heads."""
    folder = tmp_path_factory.mktemp("pair")
    traces = [sentence_trace.trace, story_trace.trace]
    return page(traces, title="two models").save(folder / "pair.html")


@pytest.fixture(scope="module")
def turned_pair(sentence_trace, story_trace, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    traces = [story_trace.trace, sentence_trace.trace]
    return page(traces, title="two models").save(folder / "pair.html")


def test_what_is_chosen_stays_chosen_where_the_other_column_lacks_it(open_page, pair):
    looking = open_page(pair, "view=matrix")
    left, right = looking.by("status").nth(0), looking.by("status").nth(1)
    looking.choose("layer-select", "Layer 5")
    expect(left).to_contain_text("layer 5")
    expect(right).to_contain_text("layer 4")
    looking.choose("head-select", "Head 11")
    expect(left).to_contain_text("layer 5 · head 11")
    expect(right).to_contain_text("layer 4 · head 8")
    looking.choose("layer-select", "Layer 2")
    expect(left).to_contain_text("layer 2 · head 11")
    expect(right).to_contain_text("layer 2 · head 8")
    state = looking.hash()
    assert (state["head"], state["head.1"]) == ("11", "8")


def test_a_switch_works_where_only_the_second_column_has_a_use_for_it(open_page, turned_pair):
    looking = open_page(turned_pair, "view=matrix")
    toggle = looking.by("special-select")
    expect(toggle).to_be_enabled()
    expect(looking.by("status").nth(1)).to_contain_text("22 × 22")
    looking.choose("special-select", "folded")
    expect(looking.by("status").nth(1)).to_contain_text("21 × 21")


def test_words_of_one_column_of_two(open_page, translation_trace, sentence_trace, tmp_path):
    traces = [translation_trace.trace, sentence_trace.trace]
    looking = open_page(page(traces).save(tmp_path / "one.html"), "view=matrix")
    toggle, right = looking.by("unit-toggle"), looking.by("status").nth(1)
    expect(right).to_contain_text("22 × 22")
    toggle.click()
    expect(toggle).to_have_attribute("aria-checked", "true")
    expect(right).to_contain_text("words")
    looking.page.keyboard.press("w")
    expect(toggle).to_have_attribute("aria-checked", "false")
    expect(right).to_contain_text("22 × 22")


def test_exports_say_which_column_they_are_of(open_page, pair):
    looking = open_page(pair, "view=matrix&layer=2&head=1")
    expect(looking.by("export-csv")).to_have_attribute("title", re.compile("left column"))
    rows = looking.table()
    assert rows[0]["query_token"] == "[CLS]"
    expect(looking.by("announcer")).to_contain_text("left column")
    looking.by("matrix-canvas").nth(1).focus()
    expect(looking.by("export-csv")).to_have_attribute("aria-label", re.compile("right column"))
    rows = looking.table()
    assert rows[0]["query_token"] == "Once"
    assert rows[1]["key_token"] == "Ġupon", "numbers have the tokens as they are"
    expect(looking.by("announcer")).to_contain_text("right column")


# -- one page


def test_the_tooltip_of_the_text_follows_what_is_chosen(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=text&layer=3&head=1")
    weights = sentence_trace.weights(3)[1]
    word = looking.by("text-word-8")
    word.hover()
    assert "mean over all words" in looking.tooltip()
    assert agrees(looking.hovered_weight(), float(weights.mean(0)[8]))
    word.click()
    expect(looking.by("tooltip")).to_contain_text("weight")
    assert agrees(looking.hovered_weight(), float(weights[8, 8]))


def test_the_tooltip_of_the_text_follows_the_keyboard_and_the_layer(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=text&layer=3&head=1")
    looking.by("text-word-7").focus()
    for key in ("ArrowRight", "Enter", "d", "]"):
        looking.page.keyboard.press(key)
    expect(looking.by("status")).to_contain_text("layer 4")
    expect(looking.by("text-word-8")).to_be_focused()
    weight = float(sentence_trace.weights(4)[1][8, 8])
    looking.until("!document.querySelector('[data-testid=tooltip]').hidden")
    looking.page.wait_for_timeout(100)
    assert agrees(looking.hovered_weight(), weight)


def test_what_the_model_wrote_is_marked(open_page, story_trace):
    looking = open_page(story_trace, "view=text&layer=2")
    written = looking.page.locator(".word-written")
    prompt = story_trace.options["prompt"]
    count = looking.page.locator(".word").count() - prompt
    assert count > 5 and written.count() == count
    assert written.first.get_attribute("data-testid") == f"text-word-{prompt}"
    expect(looking.page.locator(".slider-legend")).to_have_text("written by the model")
    looking.view("lines")
    marked = looking.page.locator(".lines-token.is-written").first
    expect(marked).to_have_attribute("data-testid", f"lines-row-{prompt}")
    looking.view("matrix")
    picture = looking.downloaded("export-svg").read_text(encoding="utf-8")
    assert picture.count('text-decoration="underline"') == 2 * count


def test_marks_of_bytes_are_not_shown(open_page, story_trace):
    looking = open_page(story_trace, "view=lines&layer=2")
    expect(looking.by("lines-row-1")).to_have_text("upon")
    looking.view("text")
    expect(looking.by("text-word-1")).to_have_text("upon")
    assert "Ġ" not in looking.page.inner_text("body")


def test_types_of_heads_are_explained(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    named = looking.by("thumb-0-2").locator(".thumb-type")
    assert named.get_attribute("title").startswith("previous: ")
    looking.by("help-button").click()
    assert looking.by("help-types").locator("dt").all_inner_texts() == list(TYPES)


def test_help_has_only_keys_that_do_something(open_page, sentence_trace, disc_trace, story_trace):
    for drawn, has_image, has_steps in (
        (sentence_trace, False, False),
        (disc_trace, True, False),
        (story_trace, False, True),
    ):
        looking = open_page(drawn)
        looking.page.keyboard.press("?")
        keys = looking.page.locator(".help-keys kbd").all_inner_texts()
        assert ("5" in keys) is has_image
        assert ("g" in keys) is has_steps


def test_the_map_offers_nothing_that_it_does_not_show(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    for control in ("layer-select", "mode-select", "head-select"):
        expect(looking.by(control)).to_be_hidden()
    for key in "md":
        looking.page.keyboard.press(key)
    assert not {"mode", "direction"} & set(looking.hash())
    looking.view("matrix")
    looking.page.keyboard.press("d")
    assert "direction" not in looking.hash()
    expect(looking.by("mode-select")).to_be_visible()


def test_keys_without_a_pause_act_on_the_row_they_came_to(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&layer=3&head=1")
    looking.by("lines-row-0").focus()
    looking.page.evaluate(
        QUICKLY, ["ArrowDown", "ArrowDown", " ", "ArrowDown", "ArrowDown", "Enter"]
    )
    state = looking.hash()
    assert (state["selected"], state["pinned"]) == ("2,4", "true")
    expect(looking.by("lines-row-4")).to_be_focused()


def test_the_layer_over_a_picture_has_an_opacity(open_page, disc_trace):
    looking = open_page(disc_trace, "view=image")
    expect(looking.page.get_by_label("Opacity")).to_be_visible()


def test_a_notebook_has_no_link_to_copy(open_page, sentence_trace, saved, tmp_path):
    html = saved(sentence_trace).read_text(encoding="utf-8")
    quoted = html.replace("&", "&amp;").replace('"', "&quot;")
    outer = tmp_path / "notebook.html"
    outer.write_text(f'<!doctype html><iframe width=1200 height=700 srcdoc="{quoted}"></iframe>')
    looking = open_page(outer, wait=False)
    frame = looking.page.frame_locator("iframe")
    expect(frame.get_by_test_id("export-png")).to_be_visible()
    expect(frame.get_by_test_id("copy-link")).to_have_count(0)


# -- live


@pytest.fixture(scope="module")
def address(browser):
    yield from served("minilm", "smollm2", "mobilesam")


@pytest.fixture(scope="module")
def trace_address(browser, sentence_trace, tmp_path_factory):
    path = sentence_trace.trace.save(tmp_path_factory.mktemp("served") / "kept.safetensors")
    yield from served("--trace", str(path))


def test_a_link_of_the_live_page_has_model_and_text(live, address):
    looking = live("view=matrix&layer=3&head=1")
    look(looking, TEXT)
    link = looking.copied_link()
    fields = parse_qs(urlsplit(link).fragment)
    assert (fields["model"], fields["text"]) == (["minilm"], [TEXT])
    other = live(urlsplit(link).fragment)
    expect(other.by("live-text")).to_have_value(TEXT)
    expect(other.page.locator(".pane-title")).to_contain_text(TEXT)
    expect(other.by("status")).to_contain_text("layer 3 · head 1")


def test_a_link_to_two_columns_opens_both(live):
    looking = live(f"model=minilm&text={TEXT}&model.1=smollm2&text.1=Once upon a time&view=matrix")
    expect(looking.by("live-text-2")).to_have_value("Once upon a time", timeout=30_000)
    expect(looking.by("matrix-canvas")).to_have_count(2, timeout=30_000)
    titles = looking.page.locator(".pane-title").all_inner_texts()
    assert titles == [f"MiniLM: “{TEXT}”", "SmolLM2: “Once upon a time”"]


def test_a_link_to_a_model_that_is_not_there(open_page, address):
    looking = open_page(address, "model=other&text=abc", wait=False)
    expect(looking.by("live-error")).to_contain_text("other, which is not here")


def test_a_link_leaves_out_a_long_text(live):
    looking = live()
    look(looking, "word " * 250)
    fields = parse_qs(urlsplit(looking.copied_link()).fragment)
    assert "text" not in fields and fields["model"] == ["minilm"]
    expect(looking.by("announcer")).to_contain_text("more than 1000 characters")


def test_the_live_page_names_what_it_shows(live):
    looking = live()
    look(looking, TEXT)
    title, note = looking.page.locator(".pane-title"), looking.by("live-note")
    expect(title).to_have_text(f"MiniLM: “{TEXT}”")
    expect(note).to_be_hidden()
    looking.by("live-text").fill("Another text")
    expect(note).to_have_text(f"Shown: MiniLM: “{TEXT}”")
    looking.by("live-text").fill(TEXT)
    expect(note).to_be_hidden()
    looking.by("live-model").select_option(label="SmolLM2")
    expect(note).to_be_visible()
    looking.by("live-model").select_option(label="MiniLM")
    look(looking, "word " * 600)
    expect(looking.by("live-error")).to_contain_text("602 tokens")
    expect(note).to_be_visible()
    looking.errors.clear()  # the browser itself logs a refused request


def test_a_text_of_any_length_is_sent_whole_or_refused(live):
    looking = live()
    text = "a" * 20_001
    look(looking, text)
    assert len(looking.by("live-text").input_value()) == len(text)
    expect(looking.by("live-error")).to_contain_text(re.compile("20[ ,]?001"))
    looking.errors.clear()


def test_an_image_opens_as_an_image_and_other_files_are_not_sent(live, tmp_path):
    looking = live()
    looking.by("live-model").select_option(label="MobileSAM")
    script = tmp_path / "script.png"
    script.write_text("print('no picture')")
    looking.by("live-image").set_input_files(script)
    before = len(looking.requests)
    looking.by("live-run").click()
    expect(looking.by("live-error")).to_contain_text("no PNG or JPEG picture")
    assert len(looking.requests) == before
    Image.new("RGB", (320, 240), (40, 60, 50)).save(tmp_path / "green.png")
    looking.by("live-image").set_input_files(tmp_path / "green.png")
    looking.by("live-run").click()
    expect(looking.by("live-cancel")).to_be_hidden(timeout=90_000)
    expect(looking.by("image-canvas")).to_be_visible()
    expect(looking.page.locator(".pane-title")).to_have_text("MobileSAM: “green.png”")


def test_two_live_columns_leave_room_for_what_they_show(live):
    looking = live()
    look(looking, TEXT)
    looking.by("live-compare").click()
    expect(looking.page.locator(".live-pane .empty")).to_have_text("Choose a model and press Look.")
    look(looking, TEXT, "-2")
    looking.view("matrix")
    top = looking.by("matrix-canvas").first.bounding_box()["y"]
    assert top < 320, f"{top:.0f} of 800 pixels are above the matrix"
    looking.by("live-compare").click()
    expect(looking.by("layer-select")).to_be_visible()


def test_a_list_of_traces_is_called_so(open_page, trace_address):
    looking = open_page(trace_address, wait=False)
    expect(looking.page.locator("label[for=live-model]")).to_have_text("Trace")
    expect(looking.page.locator(".pane-title")).to_have_text("kept", timeout=30_000)
