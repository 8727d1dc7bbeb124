"""The map: its text, words and special tokens, order and types; heads by what two words give."""

import re

import pytest
import torch
from looking import agrees
from playwright.sync_api import expect
from viewer_traces import Drawn, gated

from regard.aggregate import Words
from regard.aggregate.statistics.report import TYPES

PLACES = "nodes => nodes.map(node => node.dataset.place)"
CELLS = """
place => {
  const canvas = document.querySelector(`[data-testid=thumb-${place}] canvas`);
  return [canvas.height, canvas.width];
}
"""
SHADE = """
([place, row, column]) => {
  const canvas = document.querySelector(`[data-testid=thumb-${place}] canvas`);
  return canvas.getContext("2d").getImageData(column, row, 1, 1).data[0];
}
"""


def places(looking) -> list[str]:
    """Layer and head of every picture, in the order of the page."""
    return looking.page.locator(".heads-map .thumb").evaluate_all(PLACES)


def rows(looking) -> list[str]:
    return looking.page.locator(".heads-map .heads-layer").all_inner_texts()


def word(trace, position: int) -> int:
    return trace.options["words"].pieces[position]


def hover_picture(looking, place: str, row: float, column: float, size: tuple[int, int]) -> None:
    box = looking.by(f"thumb-{place}").locator("canvas").bounding_box()
    x = box["x"] + (column + 0.5) / size[1] * box["width"]
    y = box["y"] + (row + 0.5) / size[0] * box["height"]
    looking.page.mouse.move(x - 1, y)
    looking.page.mouse.move(x, y)


def test_the_map_follows_words_special_tokens_and_colours(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    expect(looking.by("map-query-3")).to_have_text("##bel")
    assert looking.page.evaluate(CELLS, "3-1") == [22, 22]
    weights = sentence_trace.weights(3)[1]
    hover_picture(looking, "3-1", 12, 4, (22, 22))
    looking.until("document.querySelector('.tooltip-number') !== null")
    assert agrees(looking.hovered_weight(), float(weights[12, 4]))
    looking.by("unit-toggle").click()
    expect(looking.by("map-query-2")).to_have_text("unbelievably")
    looking.choose("special-select", "hidden")
    expect(looking.by("map-query-0")).to_have_text("The")
    words = sentence_trace.options["words"]
    size = len(words.names) - 2
    looking.until(f"({CELLS})('3-1')[0] === {size}")
    before = looking.page.evaluate(SHADE, ["3-1", 3, 1])
    looking.by("colour-toggle").click()
    looking.until(f"({SHADE})(['3-1', 3, 1]) !== {before}")
    assert "logarithmic" in looking.by("legend").get_attribute("aria-label")
    for said in ("rows renormalised", "largest share", "logarithmic colours"):
        expect(looking.by("status")).to_contain_text(said)
    merged = words.sum(weights)
    row = [piece for piece, each in enumerate(words.pieces) if each == 4]
    left = merged[row].mean(0)[1:-1]
    hover_picture(looking, "3-1", 3, 1, (size, size))
    expect(looking.by("tooltip")).to_contain_text("unbelievably")
    assert agrees(looking.hovered_weight(), float(left[1] / left.sum()))


def test_heads_are_sorted_and_filtered(open_page, sentence_trace):
    report = sentence_trace.trace.report()
    looking = open_page(sentence_trace)
    assert rows(looking) == [f"Layer {layer}" for layer in range(6)]
    for figure in ("entropy", "distance"):
        looking.choose("sort-select", f"By {figure}")
        expect(looking.page.locator(".heads-map .heads-layer")).to_have_count(0)
        values = [
            getattr(report[tuple(map(int, place.split("-")))], figure) for place in places(looking)
        ]
        assert len(values) == 72 and values == sorted(values)
        expect(
            looking.by("thumb-0-0").locator("xpath=ancestor::*[@role='grid']")
        ).to_have_attribute("aria-label", f"Heads by {figure}")
    looking.by("map-query-2").click()
    looking.choose("sort-select", "By entropy")
    looking.by("map-clear").click()
    assert looking.hash()["sort"] == "entropy", "the order that was chosen stays"
    looking.choose("sort-select", "By type")
    names = [name.lower() for name in rows(looking) if name]
    assert set(names) == set(report.counts()) <= set(TYPES)
    looking.choose("type-select", r"Previous")
    heads = {f"{row.layer}-{row.head}" for row in report.heads("previous")}
    assert set(places(looking)) == heads
    label = next(row.label for row in report if row.with_sink and row.type == "previous")
    assert label == "previous, with a sink"
    assert looking.page.locator(".thumb-type", has_text="+ sink").count() == sum(
        row.with_sink for row in report.heads("previous")
    )


@pytest.mark.parametrize("unit", ["pieces", "words"])
def test_two_words_rank_the_heads(open_page, sentence_trace, unit):
    """The same order, and the same best head, as `trace.find`."""
    trace, words = sentence_trace.trace, sentence_trace.options["words"]
    looking = open_page(sentence_trace, f"unit={unit}")
    it, animal = ((words.names.index(name)) for name in ("it", "animal"))
    if unit == "pieces":
        it, animal = (words.pieces.index(number) for number in (it, animal))
    looking.by(f"map-query-{it}").click()
    partners = trace.find("it", words=words)
    best = partners[0]
    finding = f"it → {best.key} {100 * best.weight:.0f} % in layer {best.layer} head {best.head}"
    if unit == "words":
        expect(looking.by("map-finding")).to_contain_text(finding)
    looking.by(f"map-query-{animal}").click()
    ranking = trace.find("it", "animal", words=words)
    expect(looking.by("map-finding")).to_contain_text(str(ranking[0]))
    first = [f"{match.layer}-{match.head}" for match in ranking[:5]]
    assert places(looking)[:5] == first
    looking.choose("special-select", "hidden")
    expect(looking.by("map-finding")).to_contain_text("of its row renormalised")
    looking.choose("special-select", "shown")
    assert looking.hash()["sort"] == "pair"
    looking.page.locator(".heads-map .thumb").first.click()
    expect(looking.by("matrix-canvas")).to_be_visible()
    state = looking.hash()
    chosen = (int(state["layer"]), int(state.get("head", 0)), int(state["selected"]))
    assert chosen == (ranking[0].layer, ranking[0].head, it)
    looking.view("map")
    looking.by("map-clear").click()
    assert rows(looking) == [f"Layer {layer}" for layer in range(6)]


def test_a_head_opens_with_the_word_that_was_chosen(open_page, sentence_trace):
    """Also where the matrix was shown before, over other rows."""
    looking = open_page(sentence_trace, "view=matrix&layer=0&head=0")
    expect(looking.by("matrix-canvas")).to_be_visible()
    looking.view("map")
    looking.choose("special-select", "hidden")
    expect(looking.by("map-query-0")).to_have_text("the")
    looking.by("map-query-4").click()
    looking.by("thumb-3-1").click()
    expect(looking.by("matrix-canvas")).to_be_visible()
    assert looking.hash()["selected"] == "4"


def test_words_of_two_texts_rank_the_heads(open_page, translation_trace):
    looking = open_page(translation_trace, "view=map&part=2")
    expect(looking.by("map-key-1")).to_be_disabled()
    looking.by("map-query-2").click()
    looking.by("map-key-1").click()
    ranking = translation_trace.trace.find("aime", "love", part="cross")
    share = re.escape(f"aime → love {100 * ranking[0].weight:.0f} %")
    expect(looking.by("map-finding")).to_have_text(
        re.compile(rf"{share} in layer {ranking[0].layer} head {ranking[0].head}")
    )
    assert places(looking) == [f"{match.layer}-{match.head}" for match in ranking]


def test_words_are_chosen_by_keyboard(open_page, sentence_trace):
    looking = open_page(sentence_trace)
    looking.by("map-query-0").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        looking.page.keyboard.press(key)
    assert looking.hash()["pair"] == "2"
    expect(looking.by("map-query-2")).to_be_focused()
    looking.page.keyboard.press("Escape")
    assert "pair" not in looking.hash()


def test_pairs_of_a_long_text(open_page, licence_trace):
    """Queries and keys are stored; a word is chosen far down."""
    looking = open_page(licence_trace, "pair=300,290&sort=pair")
    best = licence_trace.trace.find(300, 290, words=[str(n) for n in range(512)])[0]
    expect(looking.by("map-finding")).to_contain_text(
        f"{100 * best.weight:.0f} % in layer {best.layer} head {best.head}", timeout=30_000
    )


# -- what a page opens with


def test_speech_opens_on_the_head_that_aligns_it_cropped(open_page, speech_trace):
    looking = open_page(speech_trace)
    expect(looking.by("view-tab-matrix")).to_have_attribute("aria-selected", "true")
    looking.by("colour-toggle").click()  # the address has only what was changed
    first, left, last, right = looking.zoom()
    assert (first, last) == (0, 12) and left < 20 and 140 < right < 200, "3 of 30 seconds"
    expect(looking.by("status")).to_contain_text("layer 2 · head 1")
    weights = speech_trace.weights(2)[1][2:]
    strongest = weights.argmax(1)
    assert bool((strongest.diff() >= 0).all()), "the words of a sentence, one after the other"


def test_an_image_opens_on_the_image_and_a_translation_on_its_matrix(
    open_page, disc_trace, translation_trace
):
    looking = open_page(disc_trace)
    expect(looking.by("image-canvas")).to_be_visible()
    looking = open_page(translation_trace)
    expect(looking.by("matrix-canvas")).to_be_visible()
    expect(looking.by("status")).to_contain_text("cross-attention")


def test_a_start_that_was_asked_for_is_kept(open_page, translation_trace):
    looking = open_page(translation_trace, start="view=text&layer=1")
    expect(looking.by("view-tab-text")).to_have_attribute("aria-selected", "true")
    expect(looking.by("status")).to_contain_text("encoder self-attention")


# -- lines and toolbar


def test_lines_begin_with_a_word_that_a_click_replaces(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&layer=3&head=1")
    weights = sentence_trace.weights(3)[1].clone()
    weights.fill_diagonal_(0)
    clearest = int(weights[1:-1, 1:-1].max(1).values.argmax()) + 1
    expect(looking.by(f"lines-row-{clearest}")).to_have_attribute("aria-pressed", "true")
    looking.by("lines-row-12").click()
    assert looking.hash()["selected"] == "12"


def test_lines_begin_with_no_punctuation(open_page):
    rows = [[0.1, 0.05, 0.8, 0.05], [0.1, 0.1, 0.1, 0.7], [0.05, 0.05, 0.1, 0.8], [0.25] * 4]
    weights = torch.tensor(rows)[None, None]  # to the comma and from it, more than any other
    words = Words.each(["Rain", "falls", ",", "slowly"])
    looking = open_page(Drawn(weights, {"words": words, "start": "view=lines"}))
    expect(looking.by("lines-row-1")).to_have_attribute("aria-pressed", "true")


def test_the_hint_of_the_lines_is_whole_on_a_phone(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines", width=390, height=844)
    looking.by("lines-clear").click()
    expect(looking.page.locator(".lines-hint")).to_contain_text("Click to select, h to hide.")
    height, room = looking.page.locator(".lines-bar").evaluate(
        "bar => [bar.querySelector('.lines-hint').offsetHeight, bar.clientHeight]"
    )
    assert height <= room


def test_heads_are_kept_in_colours(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&layer=3&head=1&selected=12&limit=top:2")
    looking.by("lines-compare").click()
    looking.by("rail-1-8").click()
    chips = looking.by("lines-heads")
    expect(chips).to_contain_text("Layer 3, head 1")
    expect(chips).to_contain_text("Layer 1, head 8")
    assert looking.hash()["heads"] == "3.1"
    looking.until("document.querySelector('[data-drops]') !== null")
    looking.page.wait_for_timeout(100)
    picture = looking.downloaded("export-svg").read_text(encoding="utf-8")
    strokes = re.findall(r'stroke="(#\w{6})"', picture)
    assert sorted(map(strokes.count, set(strokes))) == [2, 2]
    chips.get_by_role("button", name="Take away Layer 3, head 1").click()
    expect(chips).to_be_hidden()
    assert "heads" not in looking.hash()


@pytest.mark.parametrize("view", ["map", "matrix", "lines", "text"])
def test_the_toolbar_has_one_row_and_no_head_is_cut_off(open_page, sentence_trace, view):
    looking = open_page(sentence_trace, f"view={view}", width=1024)
    assert looking.page.locator(".controls").bounding_box()["height"] <= 56
    for scroller in ("document.documentElement", "document.querySelector('.view-host')"):
        assert looking.page.evaluate(f"{scroller}.scrollWidth <= {scroller}.clientWidth")
    if view == "map":
        last = looking.by("thumb-0-11").bounding_box()
        assert last["x"] + last["width"] <= 1024 - 15


def test_one_head_has_no_list_of_heads(open_page, tmp_path):
    import torch

    from regard.viewer import page

    path = page(torch.eye(6)[None, None], title="one").save(tmp_path / "one.html")
    looking = open_page(path)
    expect(looking.page.locator(".rail")).to_be_hidden()


def test_the_keyboard_moves_with_the_view(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix&layer=3&head=1&selected=12")
    looking.by("matrix-canvas").focus()
    looking.page.keyboard.press("3")
    looking.until("document.activeElement.matches('.lines-token')")
    looking.page.keyboard.press("4")
    looking.until("document.activeElement.matches('.word')")
    looking.page.keyboard.press("1")
    looking.until("document.activeElement.matches('.thumb')")
    looking.page.keyboard.press("Enter")
    looking.until("document.activeElement.dataset.testid === 'matrix-canvas'")
    looking.by("rail-3-1").focus()
    looking.page.keyboard.press("1")
    looking.until("document.activeElement.matches('.thumb')")


# -- values and features


def test_weights_times_the_length_of_values_where_these_were_captured(
    open_page, sentence_trace, tmp_path
):
    import torch

    import regard
    from regard.cli import packaged
    from regard.viewer import page

    loaded = packaged.minilm()
    encoded = loaded.encode("see that girl run")
    with torch.no_grad(), regard.capture(loaded.model, tokens=encoded.tokens, values=True) as trace:
        loaded.model(**encoded.inputs)
    looking = open_page(page(trace).save(tmp_path / "values.html"), "view=matrix&layer=1&head=8")
    looking.by("measure-toggle").click()
    expect(looking.by("status")).to_contain_text("length of the value")
    looking.hover_cell(2, 3)
    recipe = trace[1].recipe.plain()
    expected = recipe.weights()[0, 8, 2, 3] * recipe.value[0, 8, 3].norm()
    assert agrees(looking.hovered_weight(), float(expected))
    lengths = (recipe.weights()[0] * recipe.value[0].norm(dim=-1)[:, None])[:, 2, 3]  # (head,)
    for mode, value in (("Mean of heads", lengths.mean()), ("Largest of heads", lengths.max())):
        looking.choose("mode-select", mode)
        looking.page.mouse.move(1, 1)
        looking.hover_cell(2, 3)
        assert agrees(looking.hovered_weight(), float(value))
    looking.choose("layer-select", "All layers")
    expect(looking.by("measure-toggle")).to_be_disabled()
    assert "not comparable" in looking.by("measure-toggle").get_attribute("title")
    looking.view("map")
    expect(looking.by("status")).to_contain_text("largest weight × length of the value")
    looking.by("map-query-2").click()
    looking.by("map-query-3").click()
    every = [r.recipe.plain() for r in trace]
    products = [
        float(r.weights()[0, h, 2, 3] * r.value[0, h, 3].norm()) for r in every for h in range(12)
    ]
    layer, head = divmod(products.index(max(products)), 12)
    expect(looking.by("map-finding")).to_contain_text(
        f"of the value in layer {layer} head {head}", timeout=30_000
    )
    bare = open_page(sentence_trace, "view=matrix&layer=1&head=8&measure=norms")
    expect(bare.by("measure-toggle")).to_be_hidden()


@pytest.mark.parametrize("trace", ["licence", "sentence", "story"])
def test_features_of_a_pair_where_queries_and_keys_are_held(open_page, trace, request):
    """Multiplied from queries and keys, kept beside exact weights, and shared by several heads."""
    drawn = request.getfixturevalue(f"{trace}_trace")
    zoom = "&zoom=100,100,120,120" if trace == "licence" else ""
    looking = open_page(drawn, f"view=matrix&layer=3&head=4{zoom}")
    box = looking.by("matrix-canvas").bounding_box()
    looking.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    row, column = looking.hovered_cell()
    recipe = drawn.trace[3].recipe.plain()
    group = 4 * recipe.key.shape[1] // recipe.shape.heads
    products = recipe.query[0, 4, row] * recipe.key[0, group, column] * recipe.scale
    expect(looking.by("pair-title")).to_contain_text(f"over {len(products)} features")
    largest = int(products.abs().argmax())
    first = looking.by("pair-bars").locator("li").first
    expect(first).to_contain_text(f"f{largest}")
    shown = first.locator(".pair-product").inner_text().replace("−", "-")
    assert float(shown) == pytest.approx(float(products[largest]), rel=0.06)
    looking.page.keyboard.press("Escape")
    expect(looking.by("pair-panel")).to_be_hidden()


def test_the_score_of_a_masked_pair_is_named_as_that(open_page, story_trace):
    looking = open_page(story_trace, "view=matrix&layer=3&head=4")
    looking.by("matrix-canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        looking.page.keyboard.press(key)
    row, column = looking.hovered_cell()
    assert row < column
    expect(looking.by("pair-title")).to_contain_text("which is masked")


def test_there_is_no_score_of_weights_without_queries_and_keys(open_page):
    looking = open_page(gated(), "view=matrix")
    looking.by("matrix-canvas").focus()
    looking.page.keyboard.press("ArrowRight")
    looking.page.keyboard.press("Enter")
    expect(looking.by("tooltip")).to_be_visible()
    expect(looking.by("pair-panel")).to_be_hidden()
