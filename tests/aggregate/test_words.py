"""From pieces of words to words."""

import pytest
import torch

from regard.aggregate import Words
from regard.errors import ShapeError

TEXT = "Don't re-enter, unbelievable!"
# CLS, Don, ', t, re, -, enter, the comma, un, ##believable, the exclamation mark, SEP
OFFSETS = [
    (0, 0), (0, 3), (3, 4), (4, 5), (6, 8), (8, 9), (9, 14), (14, 15),
    (16, 18), (18, 28), (28, 29), (0, 0),
]  # fmt: skip
TOKENS = ["[CLS]", "Don", "'", "t", "re", "-", "enter", ",", "un", "##believable", "!", "[SEP]"]


def test_pieces_join_to_words_and_punctuation_stands_alone():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    assert words.names == ["[CLS]", "Don't", "re-enter", ",", "unbelievable", "!", "[SEP]"]
    assert words.pieces == [0, 1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6]
    assert words.tokens == TOKENS


def test_the_same_word_twice_is_two_words():
    words = Words.of("no no", [(0, 2), (3, 5)], ["no", "no"])
    assert words.names == ["no", "no"]


def test_special_tokens_beside_each_other_stay_apart():
    words = Words.of("a", [(0, 0), (0, 0), (0, 1)], ["[A]", "[B]", "a"])
    assert words.names == ["[A]", "[B]", "a"]


def test_a_merge_is_a_sum_over_keys_and_a_mean_over_queries():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    torch.manual_seed(0)
    weights = torch.randn(2, 3, 12, 12, dtype=torch.float64).softmax(-1)
    merged = words.merge(weights)
    want = torch.zeros(2, 3, 7, 7, dtype=torch.float64)
    counts = [words.pieces.count(word) for word in range(7)]
    for query, from_word in enumerate(words.pieces):
        for key, to_word in enumerate(words.pieces):
            want[:, :, from_word, to_word] += weights[:, :, query, key] / counts[from_word]
    torch.testing.assert_close(merged, want)
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, 3, 7, dtype=torch.float64))


@pytest.mark.usefixtures("without_shape_checks")
def test_weights_of_another_length_are_refused():
    words = Words.of(TEXT, OFFSETS, TOKENS)
    with pytest.raises(ShapeError, match=r"weights are \(5, 5\), but the text has 12 pieces"):
        words.merge(torch.eye(5)[None, None])


def test_each_token_a_word():
    assert Words.each(["C", "=", "O"]).pieces == [0, 1, 2]
