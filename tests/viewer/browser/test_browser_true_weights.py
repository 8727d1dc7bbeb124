"""Numbers of long texts are weights: in tooltips, lines, text, exports, and what is "strongest".

Each head is of a causal model; one looks far back at single keys, so that a mean over a block says
nothing about any of its pairs.
"""

import re

import pytest
import torch
from looking import RESTED
from playwright.sync_api import expect

import regard
from regard import masks
from regard.recipe import Dot
from regard.record import Record, Trace
from regard.record.site import Site
from regard.record.stored_attention import StoredRecipe
from regard.viewer import page

NEAR = 1e-3
LAYERS, HEADS, WIDTH = 2, 4, 64
FAR = 1  # the head that looks at single keys
#: Forms by length and budget: everything, queries and keys, the largest of each row.
PAGES = [
    pytest.param((64, 25_000_000, "very weight is kept exactly"), id="64"),
    pytest.param((512, 25_000_000, "multiplied from queries and keys"), id="512"),
    pytest.param((512, 1_500_000, "largest of each row are stored"), id="512, small"),
    pytest.param((2048, 25_000_000, "multiplied from queries and keys"), id="2048"),
    pytest.param((2048, 3_000_000, "largest of each row are stored"), id="2048, small"),
    pytest.param((4096, 6_000_000, "largest of each row are stored"), id="4096, small",
                 marks=pytest.mark.slow),
]  # fmt: skip


def looked_at(length: int) -> torch.Tensor:
    """For each query one key, anywhere before it."""
    places = torch.arange(length)
    return places * 7919 % (places + 1)


def causal_trace(length: int) -> Trace:
    generator = torch.Generator().manual_seed(length)
    records = []
    for layer in range(LAYERS):
        key = torch.randn(1, HEADS, length, WIDTH, generator=generator)
        query = 2 * torch.randn(1, HEADS, length, WIDTH, generator=generator)
        far = looked_at(length)
        query[:, FAR] = 1.4 * key[:, FAR, far] + 1.2 * key[:, FAR, far // 2]
        recipe = Dot(query, key, scale=WIDTH**-0.5, mask=masks.causal())
        site = Site(f"layer.{layer}.attention", "Attention", "", "", attends="self")
        stored = StoredRecipe(recipe)
        records.append(
            Record(site, stored, shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype)
        )
    return Trace(records).with_tokens([f"t{position}" for position in range(length)])


class LongPage:
    """A saved page, and the weights of its last layer in double precision."""

    def __init__(self, length: int, budget: int, holds: str, folder) -> None:
        trace = causal_trace(length)
        self.path = page(trace, title="far", budget=budget).save(folder / f"{length}-{budget}.html")
        self.length, self.holds, self.trace = length, holds, trace
        recipe = trace[LAYERS - 1].recipe
        self.weights = recipe.at(0, FAR).weights()[0, 0].double()
        self.others = [recipe.at(0, head).weights()[0, 0].double() for head in range(HEADS)]
        self.rows = [length // 3, length - 5]  #: that are looked at

    def strongest(self, row: int) -> int:
        return int(self.weights[row].argmax())

    def keys(self, row: int) -> list[int]:
        """The strongest key of a row and the next, the row itself, its neighbour, the future."""
        first, second, third = self.weights[row].topk(3).indices.tolist()
        return [first, second, third, row, row - 1, min(row + 3, self.length - 1)]


@pytest.fixture(scope="module", params=PAGES)
def long_page(request, tmp_path_factory) -> LongPage:
    return LongPage(*request.param, tmp_path_factory.mktemp("long"))


def told(text: str, true: float) -> bool:
    """Whether a text tells a weight, which must then be the true one; it may say that it does not.

    A short form may say "<0.001"; what is not stored may say what it is at most.
    """
    if not re.search(r"\d", text):
        return False
    number = float(re.search(r"\d[\d.]*(?:e-?\d+)?", text)[0])
    if "not stored" in text:
        assert true <= number, (text, true)
        return False
    if "<" in text:
        assert true < number, (text, true)
        return False
    assert abs(number - true) <= NEAR, (text, true)
    return True


def number_line(looking) -> str:
    looking.tooltip()
    return looking.by("tooltip").locator(".tooltip-number").inner_text()


def numbers_beside(looking, side: str) -> list[tuple[int, str]]:
    """Tokens of the lines that are in the document, and the texts beside them."""
    texts: dict[str, str] = looking.page.locator(f".lines-token[data-side={side}]").evaluate_all(
        "tokens => Object.fromEntries(tokens.map(token => "
        "[token.dataset.token, token.querySelector('.lines-weight').textContent]))"
    )
    assert any(re.search(r"\d", text) for text in texts.values())
    return [(int(token), text) for token, text in texts.items()]


FRAGMENT = f"layer={LAYERS - 1}&head={FAR}"


def test_the_page_says_what_it_holds(open_page, long_page):
    looking = open_page(long_page.path, f"view=matrix&{FRAGMENT}")
    status = looking.by("status").text_content()
    assert long_page.holds in status
    assert told(re.search(r"largest weight ([\d.e-]+)", status)[0], float(long_page.weights.max()))
    if "largest of each row" in long_page.holds:
        assert re.search(r"the \d+ largest of each row are stored, within [\d.]+ of", status)


def test_the_matrix_tells_true_weights(open_page, long_page):
    row = long_page.rows[1]
    for key in (long_page.strongest(row), min(row + 1, long_page.length - 1)):
        first = tuple(max(0, min(place - 3, long_page.length - 8)) for place in (row, key))
        edges = ",".join(map(str, (*first, first[0] + 8, first[1] + 8)))
        looking = open_page(long_page.path, f"view=matrix&{FRAGMENT}&zoom={edges}", height=900)
        looking.hover_cell(first[0] + 3, first[1] + 3, first=first)
        shown = looking.hovered_cell()  # a row may be cut off at the edge, and has no label then
        looking.hover_cell(row, key, first=(shown[0] - 3, shown[1] - 3))
        assert looking.hovered_cell() == (row, key)
        assert told(number_line(looking), float(long_page.weights[row, key]))


def test_the_text_tells_true_weights(open_page, long_page):
    for row in long_page.rows:
        looking = open_page(long_page.path, f"view=text&{FRAGMENT}&selected={row}")
        true = long_page.weights[row]
        largest = re.search(r"Largest: ≈? ?([\d.e-]+)\.", looking.by("text-view").inner_text())
        assert told(largest[1], float(true.max()))
        numbers = []
        for key in long_page.keys(row):
            looking.by(f"text-word-{key}").hover()
            expect(looking.by("tooltip")).to_contain_text(f"position {key}")
            numbers.append(told(number_line(looking), float(true[key])))
        assert all(numbers[:3]) and numbers[5], numbers  # the strongest, and the masked future


def test_what_attends_to_a_word_is_true(open_page, long_page):
    row = long_page.rows[1]
    key = long_page.strongest(row)
    looking = open_page(long_page.path, f"view=text&{FRAGMENT}&selected={key}&direction=to")
    for query in (row, row - 1, key, max(0, key - 1)):
        looking.by(f"text-word-{query}").hover()
        expect(looking.by("tooltip")).to_contain_text(f"position {query}")
        told(number_line(looking), float(long_page.weights[query, key]))


def test_the_mean_over_all_words_is_true(open_page, long_page):
    looking = open_page(long_page.path, f"view=text&{FRAGMENT}")
    received = long_page.weights.mean(0)
    for key in (0, int(received.argmax()), long_page.length // 2):
        looking.by(f"text-word-{key}").hover()
        expect(looking.by("tooltip")).to_contain_text(f"position {key}")
        assert told(number_line(looking), float(received[key]))


def test_lines_tell_true_weights_and_lead_to_the_strongest(open_page, long_page):
    for row in long_page.rows:
        fragment = f"view=lines&{FRAGMENT}&selected={row}&pinned=true&limit=top:3"
        looking = open_page(long_page.path, fragment)
        true = long_page.weights[row]
        strongest = true.topk(3).indices.tolist()
        for _ in range(len(strongest)):
            for key, text in numbers_beside(looking, "right"):
                told(text, float(true[key]))
                assert re.search(r"\d", text) or key not in strongest
            beyond = looking.page.locator(".lines-beyond:visible")
            if not beyond.count():
                break
            label = re.search(r"t(\d+)", beyond.first.inner_text())
            assert int(label[1]) in strongest
            beyond.first.click()
            looking.page.evaluate(RESTED, 300)


def test_lines_to_a_key_are_true(open_page, long_page):
    key = long_page.strongest(long_page.rows[0])
    fragment = f"view=lines&{FRAGMENT}&selected={key}&direction=to&pinned=true"
    looking = open_page(long_page.path, fragment)
    for query, text in numbers_beside(looking, "left"):
        told(text, float(long_page.weights[query, key]))


def test_exported_numbers_are_true(open_page, long_page):
    rows = ",".join(map(str, long_page.rows))
    looking = open_page(long_page.path, f"view=lines&{FRAGMENT}&selected={rows}")
    table = looking.table()
    assert {int(line["query"]) for line in table} == set(long_page.rows)
    pairs = {(int(line["query"]), int(line["key"])): float(line["weight"]) for line in table}
    for (row, key), weight in pairs.items():
        assert abs(weight - float(long_page.weights[row, key])) <= NEAR
    for row in long_page.rows:
        assert all((row, key) in pairs for key in long_page.weights[row].topk(3).indices.tolist())


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_heads_together_are_true_or_not_told(open_page, long_page, mode):
    row = long_page.rows[1]
    heads = torch.stack([weights[row] for weights in long_page.others])
    true = heads.mean(0) if mode == "mean" else heads.amax(0)
    looking = open_page(long_page.path, f"view=text&layer={LAYERS - 1}&mode={mode}&selected={row}")
    hint = re.search(r"Largest: ≈? ?([\d.e-]+)\.", looking.by("text-view").inner_text())
    if hint:
        assert told(hint[1], float(true.max()))
    for key in (*true.topk(2).indices.tolist(), row, min(row + 3, long_page.length - 1)):
        looking.by(f"text-word-{key}").hover()
        expect(looking.by("tooltip")).to_contain_text(f"position {key}")
        told(number_line(looking), float(true[key]))


def test_all_layers_together_are_true_or_not_told(open_page, long_page):
    row = long_page.rows[1]
    true = regard.rollout(long_page.trace)[0, row] if long_page.length <= 512 else None
    looking = open_page(long_page.path, f"view=text&layer=all&mode=rollout&selected={row}")
    if true is None:
        assert "of the exact ones" in looking.by("status").text_content()
        return
    for key in true.topk(2).indices.tolist():
        looking.by(f"text-word-{key}").hover()
        expect(looking.by("tooltip")).to_contain_text(f"position {key}")
        assert told(number_line(looking), float(true[key]))
