"""From pieces of words to words."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.aggregate import Words
from regard.aggregate.words.spans import visible_name, word_spans
from regard.errors import RegardError, ShapeError

TEXT = "Don't re-enter, unbelievable!"
# CLS, Don, ', t, re, -, enter, the comma, un, ##believable, the exclamation mark, SEP
OFFSETS = [
    (0, 0), (0, 3), (3, 4), (4, 5), (6, 8), (8, 9), (9, 14), (14, 15),
    (16, 18), (18, 28), (28, 29), (0, 0),
]  # fmt: skip
TOKENS = ["[CLS]", "Don", "'", "t", "re", "-", "enter", ",", "un", "##believable", "!", "[SEP]"]


def random_weights(*shape, dtype=torch.float64, seed=0):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.softmax(-1).to(dtype)


# -- where words are


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("see  that girl", ["see", "that", "girl"]),
        ("  leading", ["leading"]),
        ("a, b; (c)", ["a", ",", "b", ";", "(", "c", ")"]),
        ("don’t re-enter 'x' -", ["don’t", "re-enter", "'", "x", "'", "-"]),
        ("snake_case x2", ["snake_case", "x2"]),
        ("café cafe\u0301 Ångström", ["café", "cafe\u0301", "Ångström"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("我爱中国。", ["我", "爱", "中", "国", "。"]),
        ("東京でhello", ["東", "京", "でhello"]),
        ("한국어 텍스트", ["한국어", "텍스트"]),
        ("a👩\u200d👩\u200d👧b", ["a", "👩\u200d👩\u200d👧", "b"]),
        ("👍🏽👍", ["👍🏽", "👍"]),
        ("🇫🇷🇩🇪", ["🇫🇷", "🇩🇪"]),
        ("1\ufe0f\u20e3 ❤\ufe0f\u200d🔥", ["1\ufe0f\u20e3", "❤\ufe0f\u200d🔥"]),
        ("🏴\U000e0067\U000e0062\U000e007f!", ["🏴\U000e0067\U000e0062\U000e007f", "!"]),
        ("a\n\n  b", ["a", "↵↵", "b"]),
        ("a \r\n\rb\t", ["a", "␣↵↵", "b", "⇥"]),
        ("   ", ["␣␣␣"]),
        ("\ufeffa\u200bb", ["\ufeff", "a", "b"]),
    ],
)
def test_words_of_a_text(text, names):
    spans = word_spans(text)
    assert [visible_name(text[span.name_start : span.name_end]) for span in spans] == names
    borders = [0, *(span.end for span in spans)]
    assert [span.start for span in spans] == borders[:-1] and borders[-1] == len(text)


@given(st.text(alphabet="ab é\u0301'-_我👩\u200d🏽🇫🇷\n\r\t .\u200b\U000e0067", max_size=30))
@settings(max_examples=300, deadline=None)
def test_every_character_is_of_one_word(text):
    spans = word_spans(text)
    assert "".join(text[span.start : span.end] for span in spans) == text
    assert all(span.start <= span.name_start < span.name_end == span.end for span in spans)
    assert all(visible_name(text[span.name_start : span.name_end]) for span in spans)


# -- pieces


def test_pieces_join_to_words_and_punctuation_stands_alone():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    assert words.names == ["[CLS]", "Don't", "re-enter", ",", "unbelievable", "!", "[SEP]"]
    assert words.pieces == [0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6]
    assert words.tokens == TOKENS and words.special == {0, 6}


def test_the_same_word_twice_is_two_words():
    words = Words.of("no no", [(0, 2), (3, 5)], ["no", "no"])
    assert words.names == ["no", "no"]


def test_special_tokens_beside_each_other_stay_apart():
    words = Words.of("a", [(0, 0), (0, 0), (0, 1)], ["[A]", "[B]", "a"])
    assert words.names == ["[A]", "[B]", "a"]


def test_a_piece_over_several_words_makes_one_of_them():
    words = Words.of("wow!! 中国人", [(0, 3), (3, 5), (5, 8), (8, 9)], ["wow", "!!", "中国", "人"])
    assert words.names == ["wow", "!!", "中国", "人"]
    chain = Words.of("a b c d", [(0, 3), (2, 5), (5, 7)], ["a b", "b c", "d"])
    assert chain.names == ["a b c", "d"] and chain.pieces == [0, 0, 1]


def test_blank_pieces_go_with_the_next_word_and_line_ends_stand_alone():
    text = "a  b\n\n c  "
    offsets = [(0, 1), (1, 2), (2, 4), (4, 5), (5, 7), (7, 8), (8, 10)]
    words = Words.of(text, offsets, ["a", "_", "_b", "n", "n_", "c", "__"])
    assert words.names == ["a", "b", "↵↵", "c", "␣␣"]
    assert words.pieces == [0, 1, 1, 2, 2, 3, 4]


def test_a_piece_with_a_blank_at_its_end_is_of_its_own_word():
    words = Words.of("one two", [(0, 4), (4, 7)], ["one_", "two"])
    assert words.names == ["one", "two"]


def test_a_piece_that_lies_nowhere_and_is_not_special_goes_with_the_next():
    tokens, special = ["<s>", "▁", "a", "b", "~"], [True, False, False, False, False]
    words = Words.of("a b", [(0, 0), (0, 0), (0, 1), (2, 3), (3, 3)], tokens, special)
    assert words.names == ["<s>", "a", "b"] and words.pieces == [0, 1, 1, 2, 2]
    alone = Words.of("", [(0, 0)], ["▁"], [False])
    assert alone.names == ["▁"] and alone.special == frozenset()


def test_pieces_of_another_text_are_refused():
    with pytest.raises(ShapeError, match=r"lies at \(0, 5\) of a text of 3 characters"):
        Words.of("abc", [(0, 5)], ["abcde"])
    with pytest.raises(ShapeError, match="1 places, but 2 tokens"):
        Words.of("abc", [(0, 3)], ["a", "b"])
    with pytest.raises(ShapeError, match="2 places, but 1 tokens"):
        Words.of("abc", [(0, 3)], ["abc"], [True, False])


def test_each_token_a_word():
    assert Words.each(["C", "=", "O"]).pieces == [0, 1, 2]


# -- a mapping


def test_given_numbers():
    words = Words.given([None, 4, 4, 2, None], ["[CLS]", "un", "##do", "it", "[SEP]"])
    assert words.names == ["[CLS]", "undo", "it", "[SEP]"] and words.pieces == [0, 1, 1, 2, 3]
    assert words.special == {0, 3}
    marked = Words.given([0, 0, 1], ["▁se", "e", "▁it"])
    assert marked.names == ["see", "it"]
    apart = Words.given([0, 1, 0], ["a", "b", "c"])
    assert apart.names == ["ac", "b"] and apart.pieces == [0, 1, 0]


def test_given_names_and_a_word_without_a_piece():
    words = Words.given([None, 0, 2, 2], ["<s>", "a", "c", "c"], ["A", "lost", "C"])
    assert words.names == ["<s>", "A", "C", "lost"]
    merged = words.merge(random_weights(1, 1, 4, 4))
    assert not merged.isnan().any()
    assert (merged[..., 3, :] == 0).all() and (merged[..., 3] == 0).all()
    torch.testing.assert_close(merged[0, 0, :3].sum(-1), torch.ones(3, dtype=torch.float64))
    again = words.merge(random_weights(1, 1, 4, 4), renormalise=True)
    torch.testing.assert_close(again, merged)
    assert words.sum(torch.ones(1, 4))[0].tolist() == [1, 1, 2, 0]


def test_given_numbers_that_do_not_fit():
    with pytest.raises(ShapeError, match="word 3, but there are 2 names"):
        Words.given([0, 3], ["a", "b"], ["A", "B"])
    with pytest.raises(ShapeError, match="1 places, but 2 tokens"):
        Words.given([0], ["a", "b"])


# -- weights


def by_hand(weights, rows, columns):
    """Sum over the pieces of a key, mean over those of a query, in plain loops."""
    want = weights.new_zeros(*weights.shape[:2], len(rows.names), len(columns.names))
    for query, from_word in enumerate(rows.pieces):
        for key, to_word in enumerate(columns.pieces):
            if from_word is not None and to_word is not None:
                share = weights[:, :, query, key] / rows.pieces.count(from_word)
                want[:, :, from_word, to_word] += share
    return want


def test_a_merge_is_a_sum_over_keys_and_a_mean_over_queries():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    weights = random_weights(2, 3, 12, 12)
    merged = words.merge(weights)
    torch.testing.assert_close(merged, by_hand(weights, words, words))
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))


def test_two_texts():
    """Cross-attention: queries of one text, keys of another."""
    source = Words.of(TEXT, OFFSETS, TOKENS)
    target = Words.of("no no", [(0, 1), (1, 2), (3, 5), (0, 0)], ["n", "o", "no", "</s>"])
    weights = random_weights(2, 3, 4, 12)
    merged = target.merge(weights, source)
    assert merged.shape == (2, 3, 3, 7)
    torch.testing.assert_close(merged, by_hand(weights, target, source))


def test_special_tokens_left_out():
    words = Words.of(TEXT, OFFSETS, TOKENS).without_special()
    assert words.names == ["Don't", "re-enter", ",", "unbelievable", "!"]
    assert words.pieces[0] is words.pieces[-1] is None and words.special == frozenset()
    weights = random_weights(2, 3, 12, 12)
    merged = words.merge(weights)
    torch.testing.assert_close(merged, by_hand(weights, words, words))
    assert (merged.sum(-1) < 1).all()
    again = words.merge(weights, renormalise=True)
    torch.testing.assert_close(again, merged / merged.sum(-1, keepdim=True))
    assert words.without_special() == words == words.pooled_special()


def test_special_tokens_pooled():
    words = Words.of(TEXT, OFFSETS, TOKENS).pooled_special()
    assert words.names[-1] == "[special]" and words.pieces[0] == words.pieces[-1] == 5
    weights = random_weights(2, 3, 12, 12)
    merged = words.merge(weights)
    torch.testing.assert_close(merged, by_hand(weights, words, words))
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, 3, 6, dtype=torch.float64))
    assert words.pooled_special("x").names[-1] == "x"
    assert words.without_special() == Words.of(TEXT, OFFSETS, TOKENS).without_special()


def test_a_row_that_attends_to_special_tokens_alone():
    """Left out and renormalised, it has nothing: 0, and no NaN."""
    words = Words.of("a b", [(0, 0), (0, 1), (2, 3)], ["[CLS]", "a", "b"]).without_special()
    weights = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0.5, 0.25, 0.25]])
    merged = words.merge(weights, renormalise=True)
    assert merged.tolist() == [[0, 0], [0.5, 0.5]]


def test_texts_without_a_word():
    nothing = Words.of("", [], [])
    assert nothing.names == [] and nothing.merge(torch.zeros(1, 2, 0, 0)).shape == (1, 2, 0, 0)
    assert nothing.sum(torch.zeros(3, 0)).shape == (3, 0)
    special = Words.of("", [(0, 0), (0, 0)], ["[CLS]", "[SEP]"])
    assert special.merge(random_weights(1, 1, 2, 2)).shape == (1, 1, 2, 2)
    left = special.without_special().merge(random_weights(1, 1, 2, 2), renormalise=True)
    assert left.shape == (1, 1, 0, 0)
    assert special.pooled_special().merge(random_weights(1, 1, 2, 2)).flatten().tolist() == [1.0]


@given(
    numbers=st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=9),
    others=st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=9),
    seed=st.integers(0, 1000),
    pooled=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_rows_still_sum_to_one(numbers, others, seed, pooled):
    rows, columns = (Words.given(n, [f"t{i}" for i in range(len(n))]) for n in (numbers, others))
    if pooled:
        rows, columns = rows.pooled_special(), columns.pooled_special()
    weights = random_weights(2, 1, len(numbers), len(others), seed=seed)
    merged = rows.merge(weights, columns)
    torch.testing.assert_close(merged, by_hand(weights, rows, columns))
    torch.testing.assert_close(merged.sum(-1), torch.ones(merged.shape[:-1], dtype=torch.float64))
    kept, others_kept = rows.without_special(), columns.without_special()
    left = kept.merge(weights, others_kept, renormalise=True)
    want = 1.0 if others_kept.names else 0.0
    torch.testing.assert_close(left.sum(-1), torch.full(left.shape[:-1], want).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_precision(dtype):
    words = Words.of(TEXT, OFFSETS, TOKENS)
    weights = random_weights(2, 3, 12, 12, dtype=dtype)
    merged = words.merge(weights)
    assert merged.dtype == dtype
    exact = by_hand(weights.double(), words, words)
    torch.testing.assert_close(merged, exact.to(dtype))


def test_any_axes_before_and_vectors():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    weights = random_weights(2, 3, 12, 12)
    torch.testing.assert_close(words.merge(weights[0]), words.merge(weights)[0])
    torch.testing.assert_close(words.merge(weights[0, 0]), words.merge(weights)[0, 0])
    scores = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
    want = torch.stack(
        [scores[:, [p == word for p in words.pieces]].sum(1) for word in range(7)], 1
    )
    torch.testing.assert_close(words.sum(scores), want)
    torch.testing.assert_close(words.sum(scores[0]), want[0])
    torch.testing.assert_close(words.without_special().sum(scores), want[:, 1:-1])
    torch.testing.assert_close(words.pooled_special().sum(scores)[:, -1], want[:, 0] + want[:, 6])


def test_weights_in_a_graph():
    words = Words.of(TEXT, OFFSETS, TOKENS).without_special()
    scores = torch.randn(1, 1, 12, 12, dtype=torch.float64, requires_grad=True)
    merge = lambda x: words.merge(x.softmax(-1), renormalise=True)
    assert torch.autograd.gradcheck(merge, scores)


@pytest.mark.usefixtures("without_shape_checks")
def test_weights_of_another_length_are_refused():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    with pytest.raises(ShapeError, match=r"weights are \(5, 5\), but the text has 12 pieces"):
        words.merge(torch.eye(5)[None, None])
    with pytest.raises(ShapeError, match=r"\(5, 5\), .* 12 query pieces and the other 1 key"):
        words.merge(torch.eye(5)[None, None], Words.each(["a"]))
    with pytest.raises(ShapeError, match="5 values, but the text has 12 pieces"):
        words.sum(torch.ones(2, 5))


# -- marks


@pytest.mark.parametrize(
    ("marks", "tokens", "names"),
    [
        ("wordpiece", ["un", "##believ", "##able", "##", "!"], ["unbelievable", "##", "!"]),
        ("sentencepiece", ["▁un", "do", "▁it", ".", "▁", "now"], ["undo", "it", ".", "now"]),
        (
            "sentencepiece",
            ["▁a", "<0xE4>", "<0xB8>", "<0xAD>", "b", "<0x0A>"],
            ["a", "中", "b", "↵"],
        ),
        ("byte_level", ["un", "do", "Ġit", ".", "Ċ", "ä¸", "Ń"], ["undo", "it", ".", "↵", "中"]),
        ("byte_level", ["Ġa", "<|end|>", "b"], ["a", "<|end|>", "b"]),
        ("byte_level", ["Ġa", "日本", "b"], ["a", "日本", "b"]),
        ("bytes", ["h", "i", " ", "Ã", "©", "!"], ["hi", "é", "!"]),
    ],
)
def test_marks(marks, tokens, names):
    words = Words.from_marks(tokens, marks)
    assert words.names == names
    assert len(words.pieces) == len(tokens) and words.special == frozenset()


def test_marks_with_special_tokens():
    words = Words.from_marks(
        ["<s>", "▁un", "do", "</s>"], "sentencepiece", [True, False, False, True]
    )
    assert words.names == ["<s>", "undo", "</s>"] and words.special == {0, 2}


def test_bytes_that_make_no_character():
    """A text cut in the middle of a character: said by the usual sign, and no surrogate."""
    for marks, tokens in (
        ("bytes", ["a", " ", "ä", "¸"]),
        ("byte_level", ["a", "Ġ", "ä¸"]),
        ("sentencepiece", ["▁a", "▁", "<0xE4>", "<0xB8>"]),
    ):
        words = Words.from_marks(tokens, marks)
        assert "".join(words.names).strip("\ufffd") == "a"
        "".join(words.names).encode()
        assert len(words.pieces) == len(tokens) and None not in words.pieces


@pytest.mark.usefixtures("without_shape_checks")
def test_marks_that_are_none():
    with pytest.raises(RegardError, match="marks='bpe', expected one of wordpiece, sentencepiece"):
        Words.from_marks(["a"], "bpe")


@pytest.mark.parametrize("marks", ["wordpiece", "sentencepiece", "byte_level", "bytes"])
def test_half_a_surrogate_pair_is_shown_as_a_question_mark(marks):
    assert Words.from_marks(["\ud800"], marks).names == ["?"]
