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
from regard.recipe import Dot, Given
from regard.record import Record, Trace
from regard.record.site import Site
from regard.record.stored_attention import StoredRecipe
from regard.viewer import Scene, page

NEAR = 1e-3
MIDWAY = 0.9995  # a weight that lies between two codes, as far from either as can be
LAYERS, HEADS, WIDTH = 2, 3, 64
FAR = 1  # the head that looks at single keys
#: Forms by length and budget: everything, queries and keys, the largest of each row.
PAGES = [
    pytest.param((64, 25_000_000, "very weight is kept exactly"), id="64"),
    pytest.param((512, 25_000_000, "multiplied from queries and keys"), id="512"),
    pytest.param((512, 1_050_000, "largest of each row are stored"), id="512, small"),
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
        drawn = page(trace, title="far", budget=budget)
        assert len(drawn.html) <= budget, "script and styles are part of the file"
        self.path = drawn.save(folder / f"{length}-{budget}.html")
        self.length, self.holds = length, holds
        recipe = trace[LAYERS - 1].recipe
        self.weights = recipe.at(0, FAR).weights()[0, 0].double()
        self.heads = [recipe.at(0, head).weights()[0, 0].double() for head in range(HEADS)]
        self.rollout = regard.rollout(trace)[0].double()
        self.rows = [length // 3, length - 5]  #: that are looked at

    def strongest(self, row: int) -> int:
        return int(self.weights[row].argmax())

    def keys(self, row: int) -> list[int]:
        """The strongest key of a row and the next, the row itself, its neighbour, the future."""
        first, second, third = self.weights[row].topk(3).indices.tolist()
        return [first, second, third, row, row - 1, min(row + 3, self.length - 1)]


class WordPage:
    """A page of the eight largest weights of each row, of words with two pieces."""

    def __init__(self, folder) -> None:
        length = 601
        tokens = ["[CLS]", *(f"w{i // 2}" if i % 2 == 0 else "##x" for i in range(length - 1))]
        weights = 1e-5 * torch.rand(
            1, 6, length, length, generator=torch.Generator().manual_seed(1)
        )
        weights[..., 0] = 0.1
        weights[:, :, :, [101, 102]] = torch.tensor([0.3, 0.01])  # one piece of w50 is stored,
        weights[:, :, :, [201, 202]] = torch.tensor([0.12, 0.10])  # and both of w100
        weights[..., 301:311:2] = 0.02
        weights[:, 1, :, [101, 201]] *= 0.5
        weights /= weights.sum(-1, keepdim=True)
        weights[:, :, 5:7] = 0.0
        weights[:, :, 5, 0] = 1.0
        weights[:, :, 6, :2] = torch.tensor([MIDWAY, 1 - MIDWAY])
        recipe = Given(weights, None, "distribution")
        site = Site("layer.0.attention", "Attention", "", "", attends="self")
        stored = StoredRecipe(recipe)
        record = Record(site, stored, shape=recipe.shape, kind=recipe.kind, dtype=recipe.dtype)
        self.trace = Trace([record]).with_tokens(tokens)
        drawn = page(self.trace, title="words", budget=660_000)
        assert '"kind":"largest"' in drawn.html
        self.path = drawn.save(folder / "words.html")
        self.merged = Scene.of(self.trace).lines[0].words.merge(weights[0].double())


@pytest.fixture(scope="module")
def word_page(tmp_path_factory) -> WordPage:
    return WordPage(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="module", params=PAGES)
def long_page(request, tmp_path_factory) -> LongPage:
    return LongPage(*request.param, tmp_path_factory.mktemp("long"))


def told(text: str, true: float) -> bool:
    """Whether a text tells a weight, which must then be the true one; it may say that it does not.

    A short form may say "<0.001"; what is not stored may say what it is at most.
    """
    numbers = [float(number) for number in re.findall(r"\d[\d.]*(?:e-?\d+)?", text)]
    if not numbers:
        return False
    number = numbers[-1]
    if "not stored" in text:
        low = numbers[0] if "from" in text else 0.0
        assert low - NEAR <= true <= number + NEAR, (text, true)
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


def hover_word(looking, position: int) -> str:
    """The number of a word of the text."""
    looking.by(f"text-word-{position}").hover()
    expect(looking.by("tooltip")).to_contain_text(re.compile(rf"position {position}$"))
    return number_line(looking)


def largest_in_hint(looking) -> str:
    """What the text says is the largest weight, if it does."""
    found = re.search(r"Largest: [^ ]*? ?[\d.e-]+\.", looking.by("text-view").inner_text())
    return found[0].rstrip(".") if found else ""


FRAGMENT = f"layer={LAYERS - 1}&head={FAR}"


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
    status = looking.by("status").text_content()
    assert long_page.holds in status
    assert told(re.search(r"largest weight [\d.e-]+", status)[0], float(long_page.weights.max()))


def test_the_text_tells_true_weights(open_page, long_page):
    row, weights = long_page.rows[1], long_page.weights
    looking = open_page(long_page.path, f"view=text&{FRAGMENT}&selected={row}")
    assert told(largest_in_hint(looking), float(weights[row].max()))
    told_by_key = {key: told(hover_word(looking, key), float(weights[row, key]))
                   for key in long_page.keys(row)}  # fmt: skip
    assert all(told_by_key[key] for key in weights[row].topk(3).indices.tolist())
    assert told_by_key[min(row + 3, long_page.length - 1)]  # masked, which is known
    key = long_page.strongest(row)
    looking.open(f"view=text&{FRAGMENT}&selected={key}&direction=to")
    expect(looking.by("text-view")).to_contain_text("What attends to")
    for query in (row, row - 1, key, max(0, key - 1)):
        told(hover_word(looking, query), float(weights[query, key]))
    looking.open(f"view=text&{FRAGMENT}")
    expect(looking.by("text-view")).to_contain_text("Mean over all words")
    received = weights.mean(0)
    for key in (0, int(received.argmax()), long_page.length // 2):
        assert told(hover_word(looking, key), float(received[key]))


@pytest.mark.parametrize("mode", ["mean", "max", "rollout"])
def test_heads_and_layers_together_are_true_or_not_told(open_page, long_page, mode):
    row = long_page.rows[1]
    heads = torch.stack([weights[row] for weights in long_page.heads])
    true = {"mean": heads.mean(0), "max": heads.amax(0), "rollout": long_page.rollout[row]}[mode]
    layer = "all" if mode == "rollout" else LAYERS - 1
    looking = open_page(long_page.path, f"view=text&layer={layer}&mode={mode}&selected={row}")
    told(largest_in_hint(looking), float(true.max()))
    for key in (*true.topk(2).indices.tolist(), row, min(row + 3, long_page.length - 1)):
        told(hover_word(looking, key), float(true[key]))


def test_lines_tell_true_weights_and_lead_to_the_strongest(open_page, long_page):
    row, weights = long_page.rows[0], long_page.weights
    looking = open_page(
        long_page.path, f"view=lines&{FRAGMENT}&selected={row}&pinned=true&limit=top:3"
    )
    strongest = weights[row].topk(3).indices.tolist()
    looking.by(f"lines-row-{row}").focus()
    looking.page.keyboard.press("ArrowDown")
    spoken = looking.by("announcer").text_content()
    assert f"Query t{row + 1}, strongest t{long_page.strongest(row + 1)} " in spoken
    assert told(spoken.split()[-1], float(weights[row + 1].max()))
    for _ in strongest:
        for key, text in numbers_beside(looking, "right"):
            told(text, float(weights[row, key]))
            assert re.search(r"\d", text) or key not in strongest
        beyond = looking.page.locator(".lines-beyond:visible")
        if not beyond.count():
            break
        assert int(re.search(r"t(\d+)", beyond.first.inner_text())[1]) in strongest
        beyond.first.click()
        looking.page.evaluate(RESTED, 300)
    key = strongest[0]
    looking.open(f"view=lines&{FRAGMENT}&selected={key}&direction=to&pinned=true")
    looking.page.evaluate(RESTED, 300)
    for query, text in numbers_beside(looking, "left"):
        told(text, float(weights[query, key]))


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


def test_the_largest_of_heads_over_words_is_that_of_one_head(open_page, word_page):
    looking = open_page(word_page.path, "view=text&layer=0&mode=max&unit=words&selected=151")
    true = word_page.merged[:, 151].amax(0)
    for word, is_stored in ((101, True), (51, False)):
        looking.by(f"text-word-{word}").hover()
        expect(looking.by("tooltip")).to_contain_text(f"w{word - 1}x")
        assert told(number_line(looking), float(true[word])) == is_stored


def test_no_strongest_partner_is_named_that_stored_weights_leave_open(open_page, word_page):
    """Of the word that gets most, one piece is stored; of the next, both are."""
    looking = open_page(word_page.path, "view=map&pair=401&sort=pair")
    best = word_page.trace.find(401, words=[str(place) for place in range(601)])[0]
    partner = word_page.trace[0].key_tokens[int(best.key)]
    expect(looking.by("map-finding")).to_contain_text(f"→ {partner} {100 * best.weight:.0f} % in")
    looking.by("unit-toggle").click()
    said = "The largest weight from “w200##x” to another word is not stored in any head."
    expect(looking.by("map-finding")).to_have_text(said.replace("##", ""))
    assert set(looking.page.locator(".thumb-value").all_inner_texts()) == {"not stored"}
    looking.by("map-query-101").click()  # of the 22 % for w100, everything is stored
    expect(looking.by("map-finding")).to_contain_text(re.compile(r"w200x → w100x \d+ % in"))
    looking.open("view=map&pair=0&special=hidden&sort=pair")
    expect(looking.by("map-finding")).to_have_text("“[CLS]” is not shown.")
    looking.open("view=map&pair=401,0&special=hidden&sort=pair")
    expect(looking.by("map-finding")).to_have_text("“[CLS]” is not shown.")


def test_a_stored_weight_is_as_near_as_the_page_says(open_page, word_page):
    looking = open_page(word_page.path, "view=text&layer=0&head=0&selected=6")
    looking.by("text-word-0").hover()
    assert abs(float(looking.hovered_weight()) - MIDWAY) <= looking.stated_error()
    looking.by("unit-toggle").click()
    expect(looking.by("status")).to_contain_text("for pairs of tokens, ")


def test_the_pair_under_the_pointer_is_that_of_the_picture(open_page, word_page):
    """The picture of so long a text has all its tokens, whatever is shown elsewhere."""
    looking = open_page(word_page.path, "view=map&unit=words&special=hidden")
    box = looking.by("thumb-0-0").locator("canvas").bounding_box()
    x, y = box["x"] + 0.9 * box["width"], box["y"] + 0.8 * box["height"]
    looking.page.mouse.move(x - 1, y)
    looking.page.mouse.move(x, y)
    assert re.match(r"(##x|w\d+) → (##x|w\d+)\n", looking.tooltip()), looking.tooltip()
