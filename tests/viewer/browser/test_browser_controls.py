"""Each control of the page, clicked as a person does."""

import io
import re

import pytest
import torch
from looking import agrees
from PIL import Image, ImageChops
from playwright.sync_api import expect
from viewer_traces import Drawn

import regard

MATRIX = "view=matrix&layer=3&head=1"
NAMES = {"mean": "Mean", "max": "Largest", "rollout": "Rollout", "relevance": "Relevance"}
LINES = "view=lines&layer=3&head=1"


def changed(before: bytes, after: bytes) -> bool:
    """Whether two screenshots differ by more than a blinking pixel."""
    first, second = (Image.open(io.BytesIO(png)).convert("L") for png in (before, after))
    return sum(ImageChops.difference(first, second).histogram()[16:]) > 400


# -- the map


def test_the_map_has_every_head_with_its_type(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    expect(looking.page.locator("[data-testid^=thumb-]")).to_have_count(6 * 12)
    report = sentence_trace.trace.report()
    assert report[0, 2].type == "previous"
    for layer, head in [(0, 2), (3, 1), (5, 11)]:
        expect(looking.by(f"thumb-{layer}-{head}")).to_contain_text(report[layer, head].type)


def test_a_click_on_the_map_opens_a_head(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    looking.by("thumb-3-1").click()
    expect(looking.by("matrix-canvas")).to_be_visible()
    state = looking.hash()
    assert (state["view"], state["layer"], state["head"]) == ("matrix", "3", "1")


def test_thumbnails_far_down_are_drawn_when_they_come_into_sight(open_page, story_trace):
    looking = open_page(story_trace, height=500)
    last = looking.by("thumb-4-8")
    last.scroll_into_view_if_needed()
    looking.until("document.querySelector('[data-testid=thumb-4-8] canvas').width > 1")


# -- the matrix


def test_zoom_by_wheel_buttons_and_back(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    box = looking.by("matrix-canvas").bounding_box()
    looking.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    looking.page.mouse.wheel(0, -600)
    row0, column0, row1, column1 = looking.zoom()
    assert 0 < row0 < row1 < 22 and 0 <= column0 < column1 <= 22
    looking.by("zoom-plus").click()
    narrower = looking.zoom()
    assert narrower[2] - narrower[0] < row1 - row0
    looking.by("zoom-minus").click()
    wider = looking.zoom()
    assert wider[2] - wider[0] > narrower[2] - narrower[0]
    looking.by("zoom-fit").click()
    assert looking.zoom() is None


def test_the_cell_under_the_pointer_stays_there_while_zooming(open_page, licence_trace):
    looking = open_page(licence_trace, f"{MATRIX}&zoom=100,100,300,400")
    box = looking.by("matrix-canvas").bounding_box()
    place = box["x"] + 0.6 * box["width"], box["y"] + 0.55 * box["height"]
    looking.page.mouse.move(*place)
    before = looking.hovered_cell()
    looking.page.mouse.wheel(0, -400)
    looking.page.mouse.move(place[0] + 1, place[1])
    looking.page.mouse.move(*place)
    after = looking.hovered_cell()
    assert abs(before[0] - after[0]) <= 2 and abs(before[1] - after[1]) <= 2


def test_panning_by_dragging(open_page, licence_trace):
    looking = open_page(licence_trace, f"{MATRIX}&zoom=100,100,140,140")
    box = looking.by("matrix-canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    looking.page.mouse.move(x, y)
    looking.page.mouse.down()
    looking.page.mouse.move(x - 120, y - 80, steps=6)
    looking.page.mouse.up()
    row0, column0, *_ = looking.zoom()
    assert row0 > 102 and column0 > 102
    assert "selected" not in looking.hash(), "a drag is not a click"


def test_the_crosshair_follows_and_a_click_pins_it(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    before = looking.picture()
    looking.hover_cell(12, 4)
    assert changed(before, looking.page.screenshot())
    looking.page.mouse.down()
    looking.page.mouse.up()
    assert looking.hash()["selected"] == "12"
    looking.page.mouse.move(1, 1)
    assert looking.hovered_cell() == (12, 4), "pinned"
    looking.page.keyboard.press("Escape")
    expect(looking.by("tooltip")).to_be_hidden()


@pytest.mark.parametrize("name", ["sentence", "licence", "hostile", "translation", "speech"])
@pytest.mark.parametrize(
    "zoom",
    [
        "&zoom=0.5,0.25,9.5,17.25",
        *(pytest.param(z, marks=pytest.mark.slow) for z in ("", "&zoom=1,1,4,4")),
    ],
)
def test_labels_never_overlap(open_page, request, name, zoom):
    """The labels of the exported picture are those of the screen; their boxes are measured."""
    looking = open_page(request.getfixturevalue(f"{name}_trace"), f"view=matrix{zoom}")
    boxes = looking.label_boxes(looking.downloaded("export-svg"))
    assert boxes
    for index, first in enumerate(boxes):
        for second in boxes[index + 1 :]:
            across = min(first[2], second[2]) - max(first[0], second[0])
            down = min(first[3], second[3]) - max(first[1], second[1])
            assert across <= 0.5 or down <= 0.5, (first, second)


# -- modes, units, colours


def test_modes_are_switched(open_page, graded_trace):
    looking = open_page(graded_trace, MATRIX)
    pictures = {}
    for mode in ("mean", "max", "rollout", "relevance"):
        looking.choose("mode-select", NAMES[mode])
        assert looking.hash()["mode"] == mode
        pictures[mode] = looking.picture()
    looking.choose("mode-select", "Single head")
    assert "mode" not in looking.hash()
    for first in pictures:
        for second in pictures:
            assert first == second or changed(pictures[first], pictures[second])


def test_layer_and_head_are_chosen(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    looking.choose("layer-select", "5")
    looking.choose("head-select", r"\b11\b")
    state = looking.hash()
    assert (state["layer"], state["head"]) == ("5", "11")


def test_words_and_pieces(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    expect(looking.by("lines-row-3")).to_contain_text("##bel")
    looking.by("unit-toggle").click()
    expect(looking.by("lines-row-2")).to_contain_text("unbelievably")
    assert looking.hash()["unit"] == "words"


def test_special_tokens_are_folded(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    expect(looking.by("lines-row-0")).to_contain_text("[CLS]")
    looking.choose("special-select", "folded")
    expect(looking.by("lines-row-0")).to_contain_text("the")
    expect(looking.by("lines-row-20")).to_contain_text("[special]")


def test_hidden_special_tokens_leave_shares_of_the_rest(open_page, sentence_trace):
    looking = open_page(sentence_trace, f"{LINES}&selected=12&special=hidden")
    expect(looking.by("lines-row-20")).to_have_count(0)
    row = sentence_trace.weights(3)[1][13, 1:-1]
    for column in (7, 19):
        shown = looking.side_weight(f"lines-column-{column}")
        assert agrees(shown, float(row[column] / row.sum())), (shown, column)


def test_a_chosen_word_stays_chosen_when_one_special_token_is_folded(open_page, sentence_trace):
    """[CLS] goes from the first place to the last: there are as many rows as before, but others."""
    tokens = [*sentence_trace.trace[0].query_tokens[:-1], "end"]
    looking = open_page(Drawn(sentence_trace.trace.with_tokens(tokens)), f"{LINES}&selected=7")
    expect(looking.by("lines-row-7")).to_contain_text(tokens[7])
    looking.choose("special-select", "folded")
    expect(looking.by("lines-row-6")).to_contain_text(tokens[7])
    assert looking.hash()["selected"] == "6"
    looking.choose("special-select", "shown")
    expect(looking.by("lines-row-7")).to_contain_text(tokens[7])
    assert looking.hash()["selected"] == "7"


def test_an_address_over_other_units_keeps_what_it_chooses(open_page, sentence_trace):
    looking = open_page(sentence_trace, f"{MATRIX}&selected=12&zoom=2,2,8,8")
    looking.page.evaluate(
        "location.hash = 'view=matrix&layer=2&unit=words&selected=5&zoom=4,4,9,9'"
    )
    expect(looking.by("status")).to_contain_text("words")
    state = looking.hash()
    assert (state["layer"], state["selected"]) == ("2", "5")
    assert state["zoom"].startswith("4,") or state["zoom"].split(",")[1] == "4"


def test_an_address_is_not_overwritten_before_it_is_read(open_page, sentence_trace):
    """What was clicked before goes into the address after a pause; a new address comes first."""
    looking = open_page(sentence_trace, MATRIX)
    looking.by("rail-0-0").click()
    looking.page.evaluate(
        "() => { location.hash = 'view=matrix&layer=5&head=2';"
        " const end = performance.now() + 400; while (performance.now() < end); }"
    )
    expect(looking.by("status")).to_contain_text("layer 5 · head 2")


def test_logarithmic_colours_show_what_is_weak(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    before = looking.picture()
    looking.by("colour-toggle").click()
    assert looking.hash()["colour"] == "log"
    assert changed(before, looking.picture())


def test_light_and_dark(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    shades = set()
    for _ in range(3):
        image = Image.open(io.BytesIO(looking.picture())).convert("L")
        shades.add(image.resize((1, 1)).getpixel((0, 0)) > 128)
        looking.by("theme-toggle").click()
    assert shades == {True, False}


def test_the_theme_of_the_system_is_taken(open_page, sentence_trace):
    means = []
    for dark in (False, True):
        png = open_page(sentence_trace, MATRIX, dark=dark).picture()
        means.append(Image.open(io.BytesIO(png)).convert("L").resize((1, 1)))
    assert means[0].getpixel((0, 0)) > 160 and means[1].getpixel((0, 0)) < 96


# -- lines


def test_hovering_a_token_shows_its_row(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    before = looking.picture()
    looking.by("lines-row-12").hover()
    looking.page.wait_for_timeout(100)
    assert changed(before, looking.page.screenshot())


def test_several_tokens_are_selected_and_pinned(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    looking.by("lines-row-12").click()
    looking.by("lines-row-4").click()
    assert looking.hash()["selected"] == "4,12"
    looking.by("lines-pin").click()
    assert looking.hash()["pinned"] == "true"
    pinned = looking.picture()
    looking.by("lines-row-20").hover()
    looking.page.wait_for_timeout(100)
    expect(looking.by("lines-row-12")).to_have_attribute("aria-pressed", "true")
    looking.by("lines-pin").click()
    looking.by("lines-clear").click()
    assert "selected" not in looking.hash()
    assert changed(pinned, looking.picture())


def test_a_token_is_hidden_and_comes_back(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    looking.by("lines-row-0").hover()
    looking.page.get_by_role("button", name="Hide [CLS]").first.click()
    assert looking.hash()["hidden"] == "0"
    expect(looking.by("lines-row-0")).to_have_count(0)
    expect(looking.by("lines-column-0")).to_have_count(0)
    looking.page.get_by_role("button", name="Show [CLS] again").click()
    expect(looking.by("lines-row-0")).to_be_visible()


def test_top_and_threshold_limit_the_lines(open_page, sentence_trace):
    looking = open_page(sentence_trace, LINES)
    few = looking.picture()
    looking.choose("limit-kind", "Strongest")
    looking.by("limit-value").fill("22")
    looking.by("limit-value").press("Enter")
    assert looking.hash()["limit"] == "top:22"
    many = looking.picture()
    assert changed(few, many)
    looking.choose("limit-kind", "At least")
    looking.by("limit-value").fill("0.5")
    looking.by("limit-value").press("Enter")
    assert looking.hash()["limit"] == "threshold:0.5"
    assert changed(many, looking.picture())


def test_the_lines_of_512_tokens_scroll(open_page, licence_trace):
    looking = open_page(licence_trace, LINES)
    assert looking.page.locator("[data-testid^=lines-row-]").count() < 120, "only those in sight"
    box = looking.by("lines-view").bounding_box()
    looking.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    looking.page.mouse.wheel(0, 100_000)
    expect(looking.by("lines-row-511")).to_be_visible()


# -- text


def test_a_word_is_clicked_in_the_text(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=text&layer=3&head=1")
    looking.by("text-word-12").click()
    expect(looking.by("text-word-12")).to_have_attribute("aria-pressed", "true")
    assert looking.hash()["selected"] == "12"
    row = sentence_trace.weights(3)[1][12]
    strong, weak = int(row.argmax()), int(row.argmin())
    assert looking.background(f"text-word-{strong}") < looking.background(f"text-word-{weak}") - 60


def test_the_direction_of_the_text(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=text&layer=3&head=1&selected=4")
    before = looking.picture()
    looking.by("direction-toggle").click()
    assert looking.hash()["direction"] == "to"
    assert changed(before, looking.picture())


def test_rollout_and_relevance_colour_the_text(open_page, graded_trace):
    looking = open_page(graded_trace, "view=text&selected=12")
    pictures = [looking.picture()]
    for mode in ("rollout", "relevance"):
        looking.choose("mode-select", NAMES[mode])
        pictures.append(looking.picture())
    assert changed(pictures[0], pictures[1]) and changed(pictures[1], pictures[2])


def test_both_texts_of_cross_attention(open_page, translation_trace):
    looking = open_page(translation_trace, "view=text")
    looking.choose("part-select", "(?i)cross")
    expect(looking.by("text-word-0")).to_contain_text("je")
    expect(looking.by("text-source-0")).to_contain_text("I")
    looking.by("text-source-1").click()
    assert looking.hash()["direction"] == "to"


# -- generation, image, side by side


def test_the_slider_goes_over_the_steps(open_page, story_trace):
    prompt = story_trace.options["prompt"]
    looking = open_page(story_trace, "view=lines&layer=2&head=1")
    slider = looking.by("step-slider")
    expect(slider).to_be_visible()
    slider.focus()
    slider.press("Home")
    last = looking.page.locator(f"[data-testid=lines-row-{prompt}]")
    expect(last).to_have_count(0)
    for _ in range(3):
        slider.press("ArrowRight")
    expect(looking.by(f"lines-row-{prompt + 2}")).to_be_visible()
    expect(looking.by(f"lines-row-{prompt + 3}")).to_have_count(0)
    slider.press("End")
    expect(looking.by("lines-row-18")).to_have_count(1)


def test_no_slider_without_a_generation(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    expect(looking.by("step-slider")).to_be_hidden()


def test_the_image_is_overlaid_with_the_attention_of_a_token(open_page, disc_trace):
    looking = open_page(disc_trace, "view=image&layer=2&head=0")
    before = looking.picture()
    looking.page.get_by_role("button", name="mask 1", exact=True).click()
    assert looking.hash()["selected"] == "2"
    assert changed(before, looking.picture())


def test_no_image_view_without_an_image(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    tab = looking.by("view-tab-image")
    assert tab.count() == 0 or not tab.is_visible() or tab.is_disabled()


def test_two_traces_side_by_side(open_page, sentence_trace, graded_trace, tmp_path):
    from regard.viewer import page

    made = page([sentence_trace.trace, graded_trace.trace], words=sentence_trace.options["words"])
    looking = open_page(made.save(tmp_path / "two.html"), "view=matrix&layer=3&head=1")
    expect(looking.by("matrix-canvas")).to_have_count(2)
    boxes = [looking.by("matrix-canvas").nth(place).bounding_box() for place in range(2)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1


def test_a_switch_between_two_runs_and_their_difference(open_page, tmp_path):
    from regard.viewer import page

    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(1, 5, 16)
    traces = [regard.trace(layer, inputs) for inputs in (x, x + 1)]
    made = page(traces, runs=("before", "after"))
    looking = open_page(made.save(tmp_path / "runs.html"), "view=matrix&layer=0&head=1")
    expect(looking.by("status")).to_contain_text("before")
    positive = looking.picture()
    looking.choose("part-select", "(?i)difference")
    expect(looking.by("legend")).to_have_attribute("aria-label", re.compile("from -0"))
    assert looking.hash()["head"] == "1" and changed(positive, looking.picture())


def test_the_help_names_the_keys(open_page, sentence_trace):
    looking = open_page(sentence_trace, MATRIX)
    looking.by("help-button").click()
    dialog = looking.page.locator("dialog[open]")
    expect(dialog).to_be_visible()
    for said in ("1", "Enter", "Escape", "[", "]"):
        expect(dialog).to_contain_text(said)
    looking.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_the_page_says_how_weights_are_kept(open_page, sentence_trace, licence_trace):
    for drawn, said in ((sentence_trace, "exactly"), (licence_trace, "of 14 bits, within")):
        looking = open_page(drawn, MATRIX)
        expect(looking.by("status")).to_contain_text(said)
