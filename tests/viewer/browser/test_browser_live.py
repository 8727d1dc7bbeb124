"""The live server in a browser: `regard serve`, as a process of its own."""

import io

import pytest
import torch
from looking import COLOURS, agrees
from PIL import Image, ImageDraw
from playwright.sync_api import expect
from serving_live import look, served
from test_browser_access import faults

import regard
from regard import masks
from regard.cli import packaged
from regard.recipe import Dot
from regard.record import Record, Site
from regard.record.stored_attention import StoredRecipe

TEXT = "The cat sat on the mat because it was warm."
LONG = 4096
WORDS_DRAWN = """
async () => {
  document.querySelector("[data-testid=view-tab-text]").click();
  const last = () => document.querySelector("[data-testid=text-word-4095]");
  while (!last()) await new Promise(resolve => setTimeout(resolve));
}
"""


@pytest.fixture(scope="module")
def long_trace():
    """Two layers of four heads over 4096 tokens, causal."""
    generator = torch.Generator().manual_seed(0)
    records = []
    for layer in range(2):
        query, key = (torch.randn(1, 4, LONG, 32, generator=generator) for _ in range(2))
        recipe = Dot(query, key, mask=masks.causal(), scale=0.5)
        site = Site(f"layers.{layer}.attention", "Attention", "", "given", attends="self")
        records.append(
            Record(
                site, StoredRecipe(recipe), shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype
            )
        )
    return regard.Trace(records).with_tokens([f"w{place}" for place in range(LONG)])


@pytest.fixture(scope="module")
def address(browser, long_trace, tmp_path_factory):
    """Where a server with three models and a saved trace is, while the tests of this file run."""
    path = long_trace.save(tmp_path_factory.mktemp("served") / "long.safetensors")
    models = ["minilm", "smollm2", "mobilesam"]
    yield from served(*models, "--trace", str(path))


def minilm_weights(text: str, layer: int, head: int) -> torch.Tensor:
    loaded = packaged.minilm()
    with torch.no_grad():
        trace = regard.trace(loaded.model, **loaded.encode(text).inputs)
    return trace[layer].weights()[0, head].double()


def test_a_typed_text_is_seen(live):
    looking = live()
    look(looking, TEXT)
    looking.by("thumb-3-1").click()
    rows = looking.table()
    true = minilm_weights(TEXT, 3, 1)
    got = torch.tensor([float(row["weight"]) for row in rows], dtype=torch.double)
    torch.testing.assert_close(got.view_as(true), true, atol=1e-6, rtol=0)
    tokens = [row["key_token"] for row in rows[: true.shape[1]]]
    assert tokens[:4] == ["[CLS]", "the", "cat", "sat"]


def test_two_models_and_two_texts_side_by_side(live):
    looking = live()
    look(looking, TEXT)
    looking.by("live-compare").click()
    expect(looking.by("live-text-2")).to_have_value(TEXT)
    look(looking, TEXT, "-2")
    looking.view("matrix")
    expect(looking.by("matrix-canvas")).to_have_count(2)
    looking.choose("layer-select", "3")
    expect(looking.by("status").nth(1)).to_contain_text("layer 3")
    looking.by("live-model-2").select_option(label="MiniLM")
    look(looking, "Another text, which is a little longer than the first one was.", "-2")
    expect(looking.by("matrix-canvas")).to_have_count(2)
    looking.by("live-compare").click()
    expect(looking.by("matrix-canvas")).to_have_count(1)


#: The page notes by itself what it tells of its progress whenever something is drawn.
_WATCH_PROGRESS = """() => {
  window.told = [];
  const progress = document.querySelector("[data-testid=live-progress]");
  const note = () => window.told.push(progress.textContent);
  new MutationObserver(note).observe(document.body, { childList: true, subtree: true });
}"""


def test_a_generation_grows_word_by_word(live):
    looking = live("view=lines")
    looking.by("live-model").select_option(label="SmolLM2")
    looking.by("live-text").fill("Once upon a time there was a little")
    looking.by("live-tokens").fill("40")
    looking.page.evaluate(_WATCH_PROGRESS)
    looking.by("live-generate").click()
    expect(looking.by("live-progress")).to_contain_text("girl", timeout=60_000)
    expect(looking.by("live-cancel")).to_be_hidden(timeout=60_000)
    told = {text for text in looking.page.evaluate("window.told") if " of 40" in text}
    assert len(told) >= 3, f"told on the way: {told}"
    expect(looking.page.locator("[data-testid^=lines-row-]").nth(8)).to_be_attached()
    expect(looking.by("step-slider")).to_be_visible()
    expect(looking.by("step-slider")).to_have_attribute("max", "40")
    likely = looking.by("live-likely-bars").locator("li")
    expect(likely).to_have_count(5)
    looking.by("live-likely-0").click()
    expect(looking.by("live-likely-0")).to_have_attribute("aria-pressed", "true")
    expect(likely.first).to_contain_text(looking.by("live-likely-0").inner_text().strip())
    looking.page.keyboard.press("ArrowRight")
    expect(looking.by("live-likely-1")).to_be_focused()
    look(looking, TEXT)
    expect(looking.by("live-likely")).to_be_hidden()


def test_a_generation_is_cancelled(live):
    looking = live()
    looking.by("live-model").select_option(label="SmolLM2")
    looking.by("live-text").fill("Once upon a time")
    looking.by("live-tokens").fill("150")
    looking.by("live-generate").click()
    expect(looking.by("live-progress")).to_contain_text(" of 150", timeout=30_000)
    looking.by("live-cancel").click()
    expect(looking.by("live-progress")).to_contain_text("Cancelled")
    looking.by("live-model").select_option(label="MiniLM")
    look(looking, TEXT)
    expect(looking.by("thumb-5-11")).to_be_visible()


def test_a_text_that_is_too_long_is_refused_and_the_next_is_answered(live):
    looking = live()
    look(looking, "word " * 600)
    error = looking.by("live-error")
    expect(error).to_be_visible()
    expect(error).to_contain_text("602 tokens")
    expect(error).to_contain_text("512")
    looking.errors.clear()  # the browser itself logs a refused request
    look(looking, TEXT)
    expect(error).to_be_hidden()


def test_an_empty_text_is_not_sent(live):
    looking = live()
    looking.by("live-text").fill("  ")
    looking.by("live-run").click()
    expect(looking.by("live-error")).to_contain_text("Type a text")


def test_typed_markup_is_shown_and_never_run(live):
    looking = live("view=text&unit=words")
    look(looking, "a </script><img src=x onerror=alert(1)> b")
    expect(looking.by("text-view")).to_contain_text("onerror")
    assert looking.page.evaluate("document.images.length") == 0
    assert not looking.dialogs


def test_the_policy_of_the_server(live, address):
    looking = live()
    answer = looking.context.request.get(address)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "'unsafe" not in policy and "*" not in policy
    looking.page.evaluate(
        "() => { window.broken = []; document.addEventListener('securitypolicyviolation',"
        " event => window.broken.push(event.effectiveDirective));"
        " const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
        " document.body.append(s); fetch('http://127.0.0.1:9/').catch(() => {}) }"
    )
    looking.until("window.broken.length >= 2")
    assert looking.page.evaluate("window.ran") is None
    looking.errors.clear()
    looking.requests.clear()


def test_an_image_is_looked_at(live, tmp_path):
    image = Image.new("RGB", (320, 240), (40, 60, 50))
    ImageDraw.Draw(image).ellipse((90, 50, 230, 190), fill=(230, 140, 40))
    image.save(tmp_path / "disc.png")
    looking = live()
    looking.by("live-model").select_option(label="MobileSAM")
    looking.by("live-image").set_input_files(tmp_path / "disc.png")
    looking.by("live-run").click()
    expect(looking.by("live-cancel")).to_be_hidden(timeout=90_000)
    expect(looking.by("live-error")).to_be_hidden()
    looking.view("image")
    expect(looking.by("image-canvas")).to_be_visible()


def test_a_trace_of_4096_tokens_is_browsed_in_tiles(live, long_trace):
    looking = live()
    looking.by("live-model").select_option(label="long")
    expect(looking.by("status")).to_contain_text("2 layers", timeout=30_000)
    looking.page.evaluate("location.hash = 'view=matrix&layer=1&head=3&zoom=2000,1000,2012,1016'")
    expect(looking.by("status")).to_contain_text("4096 × 4096")
    weights = long_trace[1].weights(slice(2000, 2012))[0, 3]
    for row, column in [(2001, 1003), (2008, 1010)]:
        looking.hover_cell(row, column, first=(2000, 1000))
        number = looking.hovered_weight()
        assert looking.hovered_cell() == (row, column)
        assert agrees(number, float(weights[row - 2000, column])), number
    tiles = [asked for asked in looking.requests if "/tile" in asked]
    assert tiles and len(tiles) < 100


def test_a_full_server_is_asked_again_and_cancel_stops_that(live):
    looking, refusals = live(), []

    def answer(route) -> None:
        if len(refusals) == 2:
            route.continue_()
            return
        refusals.append(route.request.url)
        headers = {"Retry-After": "1"}
        route.fulfill(status=503, headers=headers, json={"error": {"message": "it is full"}})

    looking.page.route("**/api/look", answer)
    look(looking, "a second look")
    assert len(refusals) == 2
    expect(looking.by("live-error")).to_be_hidden()
    looking.view("text")
    expect(looking.by("text-word-2")).to_contain_text("second")
    refusals.clear()
    looking.by("live-text").fill("a third look")
    looking.by("live-run").click()
    looking.by("live-cancel").click()
    expect(looking.by("live-progress")).to_have_text("Cancelled.")
    looking.page.unroute("**/api/look", answer)
    looking.errors.clear()  # the browser itself logs a refused request


def test_the_last_token_that_was_generated_is_shown(live):
    looking = live()
    looking.by("live-model").select_option(label="SmolLM2")
    looking.by("live-text").fill("The cat sat on the mat. The cat sat on the")
    looking.by("live-tokens").fill("1")
    looking.by("live-generate").click()
    expect(looking.by("live-progress")).to_have_text("It went on: mat", timeout=60_000)
    looking.view("text")
    expect(looking.by("text-word-12")).to_contain_text("mat")


def test_a_text_cannot_reorder_the_page_around_it(live):
    looking = live()
    look(looking, "up \u2069\u202enwod side")
    looking.by("live-text").fill("another")
    note = looking.by("live-note").text_content()
    assert note == r"Shown: MiniLM: “up \u2069\u202enwod side”"


def long_matrix(live):
    looking = live()
    looking.by("live-model").select_option(label="long")
    expect(looking.by("status")).to_contain_text("2 layers", timeout=30_000)
    return looking


def test_a_tile_that_failed_is_asked_for_again(live):
    looking, failed = long_matrix(live), set()

    def answer(route) -> None:
        if route.request.url in failed:
            route.continue_()
        else:
            failed.add(route.request.url)
            route.fulfill(status=503, json={"error": {"message": "too many tiles are waiting"}})

    looking.page.route("**/tile?*", answer)
    looking.by("thumb-0-1").click()
    looking.until(f"({COLOURS})() > 60")
    assert failed
    expect(looking.page.locator(".pane .problem")).to_be_hidden()
    looking.errors.clear()  # the browser itself logs a refused request


def test_tiles_that_fail_for_long_are_told_of_and_come_when_the_view_moves(live):
    looking, asked = long_matrix(live), []

    def refuse(route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=503, json={"error": {"message": "too many tiles are waiting"}})

    looking.page.route("**/tile?*", refuse)
    looking.by("thumb-1-2").click()
    problem = looking.page.locator(".pane .problem")
    expect(problem).to_contain_text("too many tiles are waiting")
    looking.page.wait_for_timeout(500)
    assert len(asked) == 3 * len(set(asked)), "asked for three times, and then no more"
    looking.page.unroute("**/tile?*", refuse)
    looking.page.wait_for_timeout(1500)
    looking.by("zoom-plus").click()
    looking.until(f"({COLOURS})() > 60")
    expect(problem).to_be_hidden()
    expect(looking.by("status")).to_contain_text("4096 × 4096")
    looking.errors.clear()


def test_a_late_failure_of_another_head_hides_nothing(live):
    looking, waiting = long_matrix(live), []

    def hold(route) -> None:
        if "layer=0" in route.request.url:
            waiting.append(route)
        else:
            route.continue_()

    looking.page.route("**/tile?*", hold)
    looking.by("thumb-0-0").click()
    looking.until("document.querySelector('canvas.matrix-layer') !== null")
    looking.page.wait_for_timeout(300)
    assert waiting
    looking.page.evaluate("location.hash = 'view=matrix&layer=1&head=3'")
    looking.until(f"({COLOURS})() > 60")
    for route in waiting:
        route.fulfill(status=504, json={"error": {"message": "there was no answer"}})
    looking.page.wait_for_timeout(300)
    expect(looking.page.locator(".pane .problem")).to_be_hidden()
    looking.errors.clear()


def test_a_thumbnail_clicked_at_once_and_another_address(live):
    """Whatever is clicked while a trace is still coming, the last address is what is shown."""
    looking = live()
    expect(looking.by("thumb-5-11")).to_be_visible()
    looking.by("live-model").select_option(label="long")
    looking.by("thumb-0-0").click()
    looking.page.evaluate("location.hash = 'view=matrix&layer=1&head=3&zoom=4000,0,4096,96'")
    expect(looking.by("status")).to_contain_text("layer 1 · head 3", timeout=30_000)
    looking.until(f"({COLOURS})() > 60")
    assert looking.hash()["zoom"].startswith("4000,")


def test_4096_words_as_text(live):
    looking = long_matrix(live)
    looking.by("thumb-1-3").click()
    looking.until(f"({COLOURS})() > 60")
    looking.page.evaluate(WORDS_DRAWN)
    expect(looking.by("text-word-4095")).to_have_text("w4095")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_fault_in_the_live_page(live, axe, dark):
    looking = live(dark=dark)
    assert not faults(looking, axe)
    looking.by("live-compare").click()
    look(looking, TEXT, "-2")
    assert not faults(looking, axe)


def test_the_live_page_on_a_screen_of_390_pixels(live):
    looking = live(width=390, height=844)
    assert looking.page.evaluate("document.documentElement.scrollWidth") <= 390
    look(looking, TEXT)
    expect(looking.by("thumb-0-0")).to_be_visible()


def test_the_picture_of_a_live_text(live):
    looking = live("view=matrix")
    look(looking, TEXT)
    Image.open(io.BytesIO(looking.downloaded("export-png").read_bytes())).verify()
