"""The report of a corpus in a real browser: the grid, a head, two runs, examples, 64 × 64 heads."""

import os
import re

import pytest
import torch
from corpus_runs import TEXTS, many_heads, run, sentences, unseen_run
from looking import agrees
from playwright.sync_api import expect
from test_browser_access import faults

from regard.cli.corpus_models import corpus_model
from regard.viewer.corpus_report import CorpusRun, corpus_report

LOOK = "encoder.layer.{}.attention.self"
SHOWN = "document.querySelector('[data-testid=head-panel]').dataset.head === '{}'"
# Where a scrolled document would show nothing, and what a scroller hides to the right.
ROOMS = """() => ({
  below: document.documentElement.scrollHeight - document.documentElement.clientHeight,
  hidden: Math.max(...[...document.querySelectorAll(".number-scroller")]
    .map((each) => each.scrollWidth - each.clientWidth)),
})"""
WIDTHS = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Where the report of some runs lies; written once."""
    folder = tmp_path_factory.mktemp("reports")
    written = {}

    def report(name, *runs, **options):
        if name not in written:
            written[name] = corpus_report(*runs, **options).save(folder / f"{name}.html")
        return written[name]

    return report


@pytest.fixture
def first(open_page, pages):
    return lambda fragment="", **options: open_page(pages("first", run()), fragment, **options)


@pytest.fixture
def pair(open_page, pages):
    return lambda fragment="", **options: open_page(
        pages("pair", run(), run(second=True)), fragment, **options
    )


def row(looking, key):
    """The cells of a number in the table of the head."""
    cells = looking.page.locator(f'[data-quantity="{key}"] td').all_inner_texts()
    return [cell.replace("−", "-") for cell in cells]


def same(shown, mean, error):
    """Whether a cell says this mean and error."""
    words = re.findall(r"-?[\d.]+", shown)
    return agrees(words[0], mean) and (len(words) == 1 or agrees(words[1], error))


class TestGrid:
    def test_every_head_has_a_cell_with_its_type(self, first):
        looking = first()
        types = sentences().report()
        for place, head in ((0, 0), (0, 2), (3, 4), (5, 11)):
            label = looking.by(f"cell-{place}-{head}").get_attribute("aria-label")
            assert label == f"layer {place}, head {head}, {types[place, head].label}"
        assert looking.page.locator(".head-cell").count() == 72

    def test_cells_show_the_numbers_of_the_collection(self, first):
        looking = first("by=figures.previous")
        weight = sentences()["figures"][LOOK.format(0)].figures["previous"]
        shown = looking.by("cell-0-2").get_attribute("data-shown")
        assert shown == f"{float(weight.mean[2]):.1f}"
        expect(looking.by("report-meaning")).to_have_text("Weight on the token just before.")
        looking.choose("report-by", "^entropy$")
        numbers = sentences()["figures"][LOOK.format(1)].figures["entropy"]
        label = looking.by("cell-1-3").get_attribute("aria-label")
        assert same(label.split("entropy ")[1].split(",")[0], *(float(v[3]) for v in numbers[:2]))

    def test_keys_move_from_head_to_head(self, first):
        looking = first()
        looking.by("cell-0-0").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "End", "ArrowLeft"):
            looking.page.keyboard.press(key)
        assert looking.focused() == ("cell-2-10", True)
        expect(looking.by("head-name")).to_have_text("Layer 2, head 10")
        assert looking.hash()["at"] == "2.10"

    def test_types_filter_the_heads(self, first):
        looking = first()
        looking.by("type-previous").click()
        shown = looking.page.locator(".head-cell:not([data-off])").evaluate_all(
            "cells => cells.map(cell => cell.dataset.testid)"
        )
        previous = sentences().report().heads("previous")
        assert sorted(shown) == sorted(f"cell-{row.layer}-{row.head}" for row in previous)

    def test_heads_in_order(self, first):
        looking = first("by=figures.distance&order=largest")
        expect(looking.page.locator(".ranking thead th:empty")).to_have_count(0)
        best = sentences().report().best("distance", 3)
        links = looking.page.locator(".ranking .head-link").all_inner_texts()[:3]
        assert links == [f"layer {row.layer}, head {row.head}" for row in best]
        looking.by(f"rank-{best[1].layer}-{best[1].head}").click()
        expect(looking.by("head-name")).to_have_text(f"Layer {best[1].layer}, head {best[1].head}")

    def test_the_theme_and_help(self, first):
        looking = first(dark=True)
        looking.page.keyboard.press("?")
        expect(looking.page.locator("dialog[open]")).to_contain_text("Each cell of the grid")
        looking.page.keyboard.press("Escape")
        looking.by("theme-toggle").click()
        assert looking.background("head-panel") >= 0
        assert looking.page.evaluate("document.documentElement.dataset.theme") == "light"


class TestHead:
    def test_its_numbers_are_those_of_the_collection(self, first):
        looking = first("at=2.9")
        figures = sentences()["figures"][LOOK.format(2)].figures
        for name in ("entropy", "distance", "previous", "special", "duplicate"):
            estimate = figures[name]
            assert same(row(looking, f"figures.{name}")[0], *(float(v[9]) for v in estimate[:2]))
        shares = sentences()["shares"][LOOK.format(2)]["punctuation"]
        assert same(
            row(looking, "shares.punctuation")[0], float(shares.mean[9]), float(shares.error[9])
        )
        assert "±" not in row(looking, "figures.positional")[0], "it has no error"

    def test_its_entropy_and_distances(self, first):
        looking = first("at=0.2")
        sharpness = sentences()["sharpness"][LOOK.format(0)]
        label = looking.by("chart-bins").get_attribute("aria-label")
        median = float(sharpness.entropies.quantiles(0.5)[2, 0])
        assert agrees(re.search(r"median ([\d.]+)", label)[1], float(f"{median:.3g}"))
        profile = sentences()["figures"][LOOK.format(0)].profile
        most = float(profile.share[2].max())
        assert f"most at 1 token back, {100 * most:.0f} %" in looking.by(
            "chart-profile"
        ).get_attribute("aria-label")

    def test_its_types_in_single_texts(self, first):
        looking = first("at=1.4")
        shares = sentences()["figures"][LOOK.format(1)].type_shares[4]
        rows = looking.by("type-shares").locator("tbody tr").all_inner_texts()
        assert len(rows) == len(shares)
        name, share = next(iter(shares.items()))
        assert any(name in text and f"{100 * share:.0f} %" in text for text in rows)

    def test_weights_between_categories(self, first):
        looking = first("at=1.4")
        between = sentences()["co_attention"][LOOK.format(1)].between
        cell = looking.by("between").locator("tbody tr").nth(1).locator("td").nth(3)
        title = cell.get_attribute("title")
        assert title.startswith("punctuation → word: ")
        assert same(
            title.split(": ")[1], float(between.mean[4, 1, 3]), float(between.error[4, 1, 3])
        )

    def test_its_strongest_texts_mark_the_pair(self, first):
        looking = first("at=1.8")
        strongest = sentences()["strongest_pairs"][LOOK.format(1)][8]
        items = looking.by("examples").locator("li")
        assert items.count() == len(strongest)
        for item, strong in zip(items.all(), strongest):
            tokens = [strong.example.tokens[place].removeprefix("##") for place in strong[2:]]
            assert item.get_by_test_id("example-query").inner_text() == tokens[0]
            assert item.get_by_test_id("example-key").inner_text() == tokens[1]
            assert item.inner_text().startswith(f"{strong.score:.2f}")

    def test_a_text_is_never_markup(self, first):
        looking = first()
        for place in range(6):
            for head in range(12):
                looking.by(f"cell-{place}-{head}").click()
        assert not looking.dialogs

    def test_the_command_of_a_text(self, first):
        looking = first("at=1.8")
        looking.context.grant_permissions(["clipboard-read", "clipboard-write"])
        looking.by("copy-command").first.click()
        looking.until("document.querySelector('.toast').hidden === false")
        command = looking.page.evaluate("navigator.clipboard.readText()")
        strong = sentences()["strongest_pairs"][LOOK.format(1)][8][0]
        quoted = strong.example.text.replace("'", "'\\''")
        assert command == (
            f"regard look '{quoted}' --model minilm --layer 1 --head 8 --html look.html"
        )


class TestRoom:
    @pytest.mark.parametrize("size", [(1440, 900), (1024, 768), (390, 844)])
    def test_the_document_ends_with_the_screen(self, pair, size):
        """Panes scroll inside it: a longer document shows an empty ground below them."""
        width, height = size
        for fragment in ("run=0", "run=0&by=figures.entropy&order=largest"):
            looking = pair(fragment, width=width, height=height)
            assert looking.page.evaluate(ROOMS)["below"] == 0

    @pytest.mark.parametrize("fragment", ["", "run=0"], ids=["difference", "run"])
    @pytest.mark.parametrize("width", [1280, 1440])
    def test_no_number_is_cut_off(self, pair, width, fragment):
        looking = pair(fragment, width=width, height=900)
        assert looking.page.evaluate(ROOMS)["hidden"] == 0


def test_what_is_not_shown_is_named(open_page, pages):
    looking = open_page(pages("unseen", unseen_run()))
    assert "not shown here: agreement, histogram" in looking.by("facts-0").inner_text()


class TestTwoRuns:
    def test_differences_with_their_error(self, pair):
        looking = pair("by=figures.distance&at=2.4")
        means = [
            sentences(second)["figures"][LOOK.format(2)].figures["distance"]
            for second in (False, True)
        ]
        first, second, difference = row(looking, "figures.distance")
        assert agrees(first, float(means[0].mean[4])) and agrees(second, float(means[1].mean[4]))
        error = float(torch.hypot(means[0].error[4], means[1].error[4]))
        assert same(difference, float(means[1].mean[4] - means[0].mean[4]), error)

    def test_which_types_changed(self, pair):
        looking = pair("only=changed")
        before, after = (sentences(second).report() for second in (False, True))
        changed = [row for row, other in zip(before, after) if row.type != other.type]
        assert changed, "the test needs one"
        shown = looking.page.locator(".head-cell:not([data-off])")
        assert shown.count() == len(changed)
        label = looking.by(f"cell-{changed[0].layer}-{changed[0].head}").get_attribute("aria-label")
        assert f"{changed[0].label} → " in label
        expect(looking.by("report-meaning")).to_contain_text(f"{len(changed)} of 72 heads")

    def test_a_clear_difference_is_told_from_chance(self, open_page, pages):
        """Against other texts nothing is clear by chance; against short ones distance is."""
        import regard
        from regard.cli.packaged import minilm

        model = minilm()
        short = [text.split(",")[0].split(" of ")[0][:18] for text in TEXTS]
        collection = regard.collect(model.model, short, tokenizer=model.tokenizer)
        page = pages("short", run(), CorpusRun(collection, "short"))
        looking = open_page(page, "by=figures.distance&only=clear")
        means = [
            [each["figures"][site].figures["distance"] for site in each.sites]
            for each in (sentences(), collection)
        ]
        tail = torch.special.ndtri(torch.tensor(1 - 0.05 / 144, dtype=torch.float64))
        clear = sum(
            int(((b.mean - a.mean).abs() > tail * torch.hypot(a.error, b.error)).sum())
            for a, b in zip(*means)
        )
        assert clear > 0
        assert looking.page.locator(".head-cell[data-clear]").count() == clear

    def test_one_run_of_the_two(self, pair):
        looking = pair("by=figures.entropy&run=1&at=0.3")
        entropy = sentences(True)["figures"][LOOK.format(0)].figures["entropy"]
        assert same(
            row(looking, "figures.entropy")[0], float(entropy.mean[3]), float(entropy.error[3])
        )


class TestExamples:
    @pytest.fixture
    def captured(self, open_page, pages):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        settings = {"column": "text", "max_length": None}

        def opened(fragment="", **options):
            model = corpus_model("minilm")
            whole = CorpusRun(
                sentences(), "first", "MiniLM", "minilm", model.attention_of(settings)
            )
            return open_page(pages("captured", whole), fragment, **options)

        return opened

    def test_they_open_in_the_viewer(self, captured):
        looking = captured("at=1.8")
        strong = sentences()["strongest_pairs"][LOOK.format(1)][8][0]
        looking.by("open-example").first.click()
        expect(looking.by("view-tab-lines")).to_have_attribute("aria-selected", "true")
        looking.view("matrix")
        looking.hover_cell(strong.query, strong.key)
        assert looking.hovered_cell() == (strong.query, strong.key)
        assert abs(float(looking.hovered_weight()) - strong.score) < 2e-6
        looking.by("back-to-heads").click()
        expect(looking.by("head-name")).to_have_text("Layer 1, head 8")
        assert looking.focused()[0] == "cell-1-8"

    def test_a_link_opens_one(self, captured):
        looking = captured("at=1.8")
        looking.by("open-example").first.click()
        fragment = "&".join(f"{key}={value}" for key, value in looking.hash().items())
        assert "example=0/20/" in fragment
        again = captured(fragment)
        expect(again.by("back-to-heads")).to_be_visible()
        expect(again.by("view-tab-lines")).to_have_attribute("aria-selected", "true")

    def test_no_serious_fault(self, captured, axe):
        looking = captured("at=1.8")
        looking.by("open-example").first.click()
        assert not faults(looking, axe)


class TestManyHeads:
    @pytest.fixture
    def big(self, open_page, pages):
        return lambda *runs, **options: open_page(
            pages(f"big{len(runs)}", *runs), "by=figures.entropy", **options
        )

    def test_a_click_answers_at_once(self, big):
        looking = big(CorpusRun(many_heads(), "many"))
        assert looking.page.locator(".head-cell").count() == 4096
        metrics = looking.context.new_cdp_session(looking.page)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy():
            """Seconds that the page's thread worked, without those that others took from it."""
            named = metrics.send("Performance.getMetrics")["metrics"]
            return next(each["value"] for each in named if each["name"] == "TaskDuration")

        times = []
        for at in range(301, 4096, 301):  # each in a layer that nobody has looked at
            before = busy()
            looking.page.evaluate(f"document.querySelectorAll('.head-cell')[{at}].click()")
            looking.until(SHOWN.format(at))
            times.append(busy() - before)
        assert sorted(times)[len(times) // 2] < 0.1, times

    def test_all_heads_of_a_layer_are_in_sight(self, big):
        looking = big(CorpusRun(many_heads(), "many"), width=1440, height=900)
        for place in ("cell-0-0", "cell-0-63", "cell-40-63"):
            expect(looking.by(place)).to_be_in_viewport(ratio=1)

    def test_two_runs(self, big):
        looking = big(CorpusRun(many_heads(), "one"), CorpusRun(many_heads(1), "two"))
        looking.by("cell-9-40").click()
        expect(looking.by("head-name")).to_have_text("Layer 9, head 40")

    def test_the_size_of_the_page(self, pages):
        page = pages("big1", CorpusRun(many_heads(), "many"))
        assert page.stat().st_size < 3_000_000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "fragment", ["", "by=figures.entropy&types=local", "by=figures.peak&order=largest"]
)
def test_no_serious_fault(first, axe, fragment, dark):
    assert not faults(first(fragment, dark=dark), axe)


@pytest.mark.parametrize("fragment", ["", "by=figures.entropy"])
def test_no_serious_fault_with_two_runs(pair, axe, fragment):
    assert not faults(pair(fragment), axe)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_narrow_screen(pair, axe, dark):
    looking = pair("by=figures.entropy", width=390, height=844, dark=dark)
    assert not faults(looking, axe)
    wide, room = looking.page.evaluate(WIDTHS)
    assert wide <= room, "nothing is wider than the screen"
    looking.by("cell-3-2").click()
    expect(looking.by("head-name")).to_be_in_viewport()
