"""Numbers on the page are those of the records: hovered, exported, of words, over layers."""

import pytest
import torch
from looking import agrees, digits
from playwright.sync_api import expect

import regard
from regard.aggregate import Words
from regard.viewer import page

LAYER, HEAD = 3, 1
CELLS = [(0, 0), (12, 4), (21, 0), (7, 7)]


def weights_in(rows: list[dict[str, str]], measure: str = "weight") -> torch.Tensor:
    """Exported numbers as a matrix (query, key)."""
    queries = len({row["query"] for row in rows})
    return torch.tensor([float(row[measure]) for row in rows], dtype=torch.double).view(queries, -1)


def close(got: torch.Tensor, want: torch.Tensor, error: float = 1e-7) -> None:
    torch.testing.assert_close(got, want.double(), atol=error, rtol=0.0)


@pytest.mark.parametrize("cell", CELLS)
def test_the_matrix_tells_the_weight_of_the_record(open_page, sentence_trace, cell):
    looking = open_page(sentence_trace, f"view=matrix&layer={LAYER}&head={HEAD}")
    looking.hover_cell(*cell)
    number = looking.hovered_weight()
    assert agrees(number, float(sentence_trace.weights(LAYER)[HEAD][cell])), number
    assert digits(number) >= 5 or float(number) == 0
    tokens = sentence_trace.trace[0].query_tokens
    assert tokens[cell[0]] in looking.tooltip() and tokens[cell[1]] in looking.tooltip()


def test_the_matrix_of_512_tokens_tells_exact_weights_and_says_where_they_are_not(
    open_page, licence_trace
):
    """The largest of each row are exact; the others are within what the page says of itself."""
    looking = open_page(licence_trace, f"view=matrix&layer={LAYER}&head={HEAD}&zoom=96,96,112,112")
    true = licence_trace.weights(LAYER)[HEAD]
    error = looking.stated_error()
    exact = 0
    for row in (98, 103, 108):
        for column in range(97, 111, 2):
            looking.hover_cell(row, column, first=(96, 96))
            number, value = looking.hovered_weight(), float(true[row, column])
            if looking.is_approximate():
                assert float(number) == pytest.approx(value, abs=error, rel=0)
            else:
                assert agrees(number, value), (row, column, number, value)
                exact += 1
    assert exact > 0


def test_lines_tell_the_weights_of_the_row_and_of_the_column(open_page, sentence_trace):
    looking = open_page(sentence_trace, f"view=lines&layer={LAYER}&head={HEAD}&limit=top:30")
    true = sentence_trace.weights(LAYER)[HEAD]
    looking.by("lines-row-12").hover()
    for column in range(0, true.shape[1], 3):
        assert agrees(looking.side_weight(f"lines-column-{column}"), float(true[12, column]))
    looking.by("lines-column-4").hover()
    for row in range(0, true.shape[0], 3):
        assert agrees(looking.side_weight(f"lines-row-{row}"), float(true[row, 4]))


def test_lines_tell_the_exact_weight_between_two_tokens(open_page, sentence_trace):
    fragment = f"view=lines&layer={LAYER}&head={HEAD}&selected=12&pinned=true"
    looking = open_page(sentence_trace, fragment)
    looking.by("lines-column-4").hover()
    number = looking.hovered_weight()
    assert agrees(number, float(sentence_trace.weights(LAYER)[HEAD][12, 4])), number
    assert digits(number) >= 5


@pytest.mark.parametrize("direction", ["from", "to"])
def test_the_text_tells_what_a_word_attends_to_and_what_attends_to_it(
    open_page, sentence_trace, direction
):
    fragment = f"view=text&layer={LAYER}&head={HEAD}&selected=12&direction={direction}"
    looking = open_page(sentence_trace, fragment)
    true = sentence_trace.weights(LAYER)[HEAD]
    for place in (0, 4, 11, 21):
        looking.by(f"text-word-{place}").hover()
        value = float(true[12, place] if direction == "from" else true[place, 12])
        number = looking.hovered_weight()
        assert agrees(number, value), (place, number, value)


def test_the_text_says_which_weights_are_not_exact(open_page, licence_trace):
    fragment = f"view=text&layer={LAYER}&head={HEAD}&selected=100"
    looking = open_page(licence_trace, fragment)
    true = licence_trace.weights(LAYER)[HEAD][100]
    largest, smallest = int(true.argmax()), int(true.argmin())
    looking.by(f"text-word-{largest}").hover()
    assert not looking.is_approximate()
    assert agrees(looking.hovered_weight(), float(true[largest]))
    looking.by(f"text-word-{smallest}").hover()
    expect(looking.by("tooltip")).to_contain_text("≈")


def test_numbers_next_to_each_other_are_told_apart(open_page, tmp_path):
    """Nine digits where a 32-bit number needs them, and not one more."""
    shares = torch.tensor([0.9, 0.90000004, 0.9000001])
    weights = torch.stack([shares, 1 - shares, torch.zeros(3)], dim=1)
    path = page(weights[None, None], title="neighbours").save(tmp_path / "near.html")
    looking = open_page(path, "view=matrix")
    for row, text in enumerate(["0.9", "0.90000004", "0.9000001"]):
        looking.hover_cell(row, 0)
        assert looking.hovered_cell() == (row, 0)
        assert looking.hovered_weight() == text
        assert torch.tensor(float(text)) == shares[row]


def test_the_image_tells_the_weight_of_a_patch(open_page, disc_trace):
    looking = open_page(disc_trace, "view=image&layer=2&head=0&selected=1")
    true = disc_trace.weights(2)[0]
    for row, column in [(25, 37), (3, 60), (40, 10)]:
        looking.hover_patch(row, column, 64, 64)
        number, value = looking.hovered_weight(), float(true[1, 64 * row + column])
        if looking.is_approximate():
            assert float(number) == pytest.approx(value, abs=looking.stated_error(), rel=0)
        else:
            assert agrees(number, value), (row, column, number, value)


def test_exported_numbers_are_those_of_the_record(open_page, sentence_trace):
    looking = open_page(sentence_trace, f"view=matrix&layer={LAYER}&head={HEAD}")
    rows = looking.table()
    close(weights_in(rows), sentence_trace.weights(LAYER)[HEAD])
    tokens = sentence_trace.trace[0].query_tokens
    assert [row["key_token"] for row in rows[: len(tokens)]] == tokens
    assert rows[len(tokens)]["query_token"] == tokens[1] and rows[len(tokens)]["query"] == "1"


def test_exported_numbers_of_512_tokens(open_page, licence_trace):
    looking = open_page(licence_trace, f"view=matrix&layer={LAYER}&head={HEAD}")
    true = licence_trace.weights(LAYER)[HEAD]
    error = looking.stated_error()
    got = weights_in(looking.table())
    close(got, true, error + 2e-7)
    with pytest.raises(AssertionError):
        close(torch.zeros_like(got), true, error + 2e-7)


def test_exported_numbers_that_are_kept_as_codes(open_page, tmp_path):
    """Weights without queries and keys, too many for 32 bits, are within what it states."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1, 2, 800, 800, generator=generator).mul(3).softmax(-1)
    looking = open_page(
        page(weights, title="codes").save(tmp_path / "codes.html"),
        "view=matrix&layer=0&head=1&zoom=200,0,240,800",
    )
    error = looking.stated_error()
    assert 0 < error < 2e-4
    rows = looking.table()
    got, first = weights_in(rows), int(rows[0]["query"])
    assert first <= 200 and len(got) >= 40
    close(got, weights[0, 1, first : first + len(got)], error)


@pytest.mark.parametrize("special", ["shown", "folded"])
def test_words_are_merged_as_by_the_library(open_page, sentence_trace, special):
    fragment = f"view=matrix&layer={LAYER}&head={HEAD}&unit=words&special={special}"
    rows = open_page(sentence_trace, fragment).table()
    words: Words = sentence_trace.options["words"]
    words = words.pooled_special() if special == "folded" else words
    close(weights_in(rows), words.merge(sentence_trace.weights(LAYER)[HEAD]), 1e-6)
    assert [row["key_token"] for row in rows[: len(words.names)]] == words.names


def test_shares_are_nowhere_called_weights(open_page, sentence_trace):
    measure = "share without special tokens"
    fragment = f"layer={LAYER}&head={HEAD}&special=hidden&selected=4&pinned=true"
    looking = open_page(sentence_trace, f"view=matrix&{fragment}")
    looking.hover_cell(4, 3)
    assert measure in looking.tooltip()
    expect(looking.by("status")).to_contain_text(f"largest {measure}")
    with looking.page.expect_download() as download:
        looking.by("export-csv").click()
    assert "share-without-special-tokens" in download.value.suggested_filename
    looking.view("text")
    looking.by("text-word-3").hover()
    assert measure in looking.tooltip()
    looking.view("lines")
    expect(looking.page.locator(".lines-caption").last).to_contain_text(f"{measure} of “")
    looking.by("lines-column-3").hover()
    assert measure in looking.tooltip()


def test_pieces_with_special_tokens_folded(open_page, sentence_trace):
    fragment = f"view=matrix&layer={LAYER}&head={HEAD}&special=folded"
    rows = open_page(sentence_trace, fragment).table()
    tokens = sentence_trace.trace[0].query_tokens
    numbers = [None, *range(len(tokens) - 2), None]
    words = Words.given(numbers, tokens, tokens[1:-1]).pooled_special()
    close(weights_in(rows), words.merge(sentence_trace.weights(LAYER)[HEAD]), 1e-6)


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_heads_of_a_layer_together(open_page, sentence_trace, mode):
    rows = open_page(sentence_trace, f"view=matrix&layer={LAYER}&mode={mode}").table()
    layer = sentence_trace.weights(LAYER)
    close(weights_in(rows), layer.mean(0) if mode == "mean" else layer.amax(0), 1e-6)


@pytest.mark.parametrize("special", ["shown", "folded", "hidden"])
def test_the_largest_of_heads_is_that_of_one_head(open_page, sentence_trace, special):
    """Words are merged and rows divided in each head, before the largest is taken."""
    fragment = f"view=matrix&layer={LAYER}&mode=max&unit=words&special={special}"
    looking = open_page(sentence_trace, fragment)
    words: Words = sentence_trace.options["words"]
    if special != "shown":
        words = words.pooled_special() if special == "folded" else words.without_special()
    merged = words.merge(sentence_trace.weights(LAYER))
    shares = merged / merged.sum(-1, keepdim=True) if special == "hidden" else merged
    measure = "share_without_special_tokens" if special == "hidden" else "weight"
    close(weights_in(looking.table(), measure), shares.amax(0), 1e-6)
    looking.choose("layer-select", "All layers")
    expect(looking.page.get_by_role("alert")).to_contain_text("stored for single tokens")


@pytest.mark.parametrize("mode", ["mean", "max"])
def test_all_heads_together(open_page, sentence_trace, mode):
    rows = open_page(sentence_trace, f"view=matrix&layer=all&mode={mode}").table()
    every = torch.cat([sentence_trace.weights(layer) for layer in range(6)])
    close(weights_in(rows), every.mean(0) if mode == "mean" else every.amax(0), 1e-6)


def test_rollout(open_page, sentence_trace):
    rows = open_page(sentence_trace, "view=matrix&layer=all&mode=rollout").table()
    close(weights_in(rows), regard.rollout(sentence_trace.trace)[0], 1e-6)


def test_relevance(open_page, graded_trace):
    rows = open_page(graded_trace, "view=matrix&layer=all&mode=relevance").table()
    true = regard.relevance(graded_trace.trace)[0]
    close(weights_in(rows), true, 1e-6 * float(true.max()))


def test_relevance_is_not_offered_without_gradients(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=matrix")
    option = looking.by("mode-select").locator("option", has_text="elevance")
    assert option.count() == 0 or option.is_disabled()


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
def test_parts_of_an_encoder_and_a_decoder(open_page, translation_trace, part):
    looking = open_page(translation_trace, "view=matrix&layer=1&head=2")
    looking.choose("part-select", f"(?i){part}")
    named = {
        "encoder": "encoder.layers.1.self_attn",
        "decoder": "decoder.layers.1.self_attn",
        "cross": "decoder.layers.1.multihead_attn",
    }[part]
    record = translation_trace.trace[named]
    looking.choose("layer-select", "1")
    looking.choose("head-select", r"\b2\b")
    rows = looking.table()
    close(weights_in(rows), record.weights()[0, 2])
    assert [row["key_token"] for row in rows[: record.shape.keys]] == list(record.key_tokens)
    assert rows[-1]["query_token"] == record.query_tokens[-1]


def test_a_step_of_a_generation_shows_what_was_there_by_then(open_page, story_trace):
    prompt = story_trace.options["prompt"]
    looking = open_page(story_trace, "view=matrix&layer=2&head=1&step=4")
    rows = looking.table()
    size = prompt + 4
    close(weights_in(rows)[:size, :size], story_trace.weights(2)[1][:size, :size], 1e-6)
    assert len({row["query"] for row in rows}) == size


def test_the_atoms_of_the_chemistry_model(open_page, reaction_trace):
    rows = open_page(reaction_trace, "view=matrix&layer=10&head=5").table()
    close(weights_in(rows), reaction_trace.weights(10)[5])


def test_speech_has_words_down_and_time_across(open_page, speech_trace):
    looking = open_page(speech_trace, "view=matrix&layer=2&head=4")
    got = weights_in(looking.table())
    assert got.shape == (12, 1500)
    close(got, speech_trace.weights(2)[4], 1e-6)


def test_folded_tokens_are_seen_in_the_lines(open_page, sentence_trace):
    looking = open_page(sentence_trace, "view=lines&special=folded&unit=words")
    names = sentence_trace.options["words"].pooled_special().names
    expect(looking.by(f"lines-row-{len(names) - 1}")).to_contain_text("[special]")
