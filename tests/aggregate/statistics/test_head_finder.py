"""Heads that make one word attend to another."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.aggregate import HeadRanking, Words, find_heads
from regard.errors import RegardError

TEXT = ["[CLS]", "the", "cat", "saw", "The", "ca", "##ts", "run", "[SEP]"]
NAMES = ["[CLS]", "the", "cat", "saw", "The", "cats", "run", "[SEP]"]
HEADS, SIZE = 3, len(TEXT)


def weights(seed=0, *shape):
    generator = torch.Generator().manual_seed(seed)
    size = shape or (1, HEADS, SIZE, SIZE)
    return torch.randn(size, generator=generator, dtype=torch.float64).mul(3).softmax(-1)


def in_words(matrix):
    """(head, word, word) by a plain loop: mean over query pieces, sum over key pieces."""
    pieces = [[0], [1], [2], [3], [4], [5, 6], [7], [8]]
    merged = torch.zeros(matrix.shape[0], len(pieces), len(pieces), dtype=matrix.dtype)
    for i, rows in enumerate(pieces):
        for j, columns in enumerate(pieces):
            for row in rows:
                for column in columns:
                    merged[:, i, j] += matrix[:, row, column] / len(rows)
    return merged


def as_map(ranking):
    return {(match.layer, match.head): match.weight for match in ranking}


def close(ranking, truth):
    """Every head has its weight, and the ranking is in order."""
    assert as_map(ranking) == pytest.approx(truth, abs=1e-6)
    shares = [match.weight for match in ranking]
    assert shares == sorted(shares, reverse=True)


LAYERS = [weights(1), weights(2)]


def truth(of):
    return {
        (layer, head): float(of(in_words(LAYERS[layer][0])[head]))
        for layer in range(2)
        for head in range(HEADS)
    }


def test_one_word_to_another():
    ranking = find_heads(LAYERS, "saw", "cats", words=TEXT)
    close(ranking, truth(lambda w: w[3, 5]))
    assert {(match.query, match.key) for match in ranking} == {("saw", "cats")}


def test_a_word_of_several_pieces_is_the_mean_of_their_rows():
    close(find_heads(LAYERS, "cats", "saw", words=TEXT), truth(lambda w: w[5, 3]))


@pytest.mark.parametrize(("query", "row"), [("the", 1), ("the#2", 4), (4, 4), (-2, 6), (6, 5)])
def test_occurrences_and_positions(query, row):
    close(find_heads(LAYERS, query, "run", words=TEXT), truth(lambda w: w[row, 6]))


def test_a_query_alone_finds_its_strongest_partner_and_never_itself():
    ranking = find_heads(LAYERS, "saw", words=TEXT)
    others = [1, 2, 4, 5, 6]
    close(ranking, truth(lambda w: w[3, others].max()))
    for match in ranking:
        row = in_words(LAYERS[match.layer][0])[match.head, 3]
        assert match.key == NAMES[max(others, key=lambda word: row[word])]


def test_special_tokens_are_words_when_asked_for():
    close(find_heads(LAYERS, "saw", "[CLS]", words=TEXT, special=True), truth(lambda w: w[3, 0]))
    with pytest.raises(RegardError, match=r"key='\[CLS\]' is a special token, which is left out"):
        find_heads(LAYERS, "saw", "[CLS]", words=TEXT)
    with pytest.raises(RegardError, match=r"key=0 is the special token '\[CLS\]'"):
        find_heads(LAYERS, "saw", 0, words=TEXT)


REAL = range(1, 7)
PATTERNS = {
    "previous": [(word, [word - 1]) for word in REAL if word > 1],
    "next": [(word, [word + 1]) for word in REAL if word < 6],
    "same": [(1, [4]), (4, [1])],
    "first": [(4, [1])],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_means_over_the_words_that_have_such_a_key(pattern):
    pairs = PATTERNS[pattern]
    expected = truth(lambda w: sum(w[q, ks].sum() for q, ks in pairs) / len(pairs))
    close(find_heads(LAYERS, pattern=pattern, words=TEXT), expected)


def test_a_pattern_of_one_word():
    close(find_heads(LAYERS, "cat", pattern="previous", words=TEXT), truth(lambda w: w[2, 1]))
    with pytest.raises(RegardError, match="pattern='same': no word has its other occurrences"):
        find_heads(LAYERS, "cat", pattern="same", words=TEXT)


def test_a_key_alone_is_the_mean_over_all_other_words():
    close(find_heads(LAYERS, key="run", words=TEXT), truth(lambda w: w[1:6, 6].mean()))


def test_long_texts_go_in_blocks():
    tokens = [f"w{index}" for index in range(150)]
    long = weights(3, 1, 2, 150, 150)
    ranking = find_heads(long, pattern="previous", words=tokens)
    expected = long[0].diagonal(-1, 1, 2).mean(-1)
    assert as_map(ranking) == pytest.approx(
        {(0, h): float(expected[h]) for h in range(2)}, abs=1e-6
    )


def test_words_and_other_marks_give_the_same():
    words = Words.from_marks(TEXT, "wordpiece", [token[0] == "[" for token in TEXT])
    byte_level = ["<s>", "Ġthe", "Ġcat", "Ġsaw", "ĠThe", "Ġca", "ts", "Ġrun", "</s>"]
    first = as_map(find_heads(LAYERS, "saw", "cats", words=words))
    assert first == as_map(find_heads(LAYERS, "saw", "cats", words=byte_level))


def test_examples_of_a_batch():
    batch = torch.cat([weights(1), weights(2)])
    other = [token.upper() for token in TEXT]
    ranking = find_heads(batch, "SAW", "RUN", words=[TEXT, other], example=1)
    assert as_map(ranking)[0, 1] == pytest.approx(float(batch[1, 1, 3, 7]))
    with pytest.raises(RegardError, match="example=1, but the tokens are those of one text"):
        find_heads(batch, "saw", "run", words=TEXT, example=1)
    with pytest.raises(
        RegardError, match=r"not among the words.*example= chooses another of the 2"
    ):
        find_heads(batch, "dog", words=[TEXT, other])
    with pytest.raises(RegardError, match="example=2, but the batch has 2"):
        find_heads(batch, "saw", "run", words=TEXT, example=2)


def decoder_trace():
    """Self-attention over four words, cross-attention from them to six others."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerDecoderLayer(16, 2, batch_first=True).eval()
    with torch.no_grad(), regard.capture(layer) as trace:
        layer(torch.randn(1, 4, 16), torch.randn(1, 6, 16))
    return trace


def test_encoder_decoder_models_are_searched_whole():
    trace = decoder_trace().with_tokens(
        ["je", "t'", "aime", "."], ["I", "love", "you", ".", "a", "b"]
    )
    crossing = trace.find("aime", "love")
    assert {match.name for match in crossing} == {"multihead_attn"}
    record = trace["multihead_attn"]
    assert as_map(crossing) == pytest.approx(
        {(None, head): float(record.weights()[0, head, 2, 1]) for head in range(2)}
    )
    assert f"in multihead_attn head {crossing[0].head}" in repr(crossing)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operator returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_long_cross_attention_is_searched_by_the_rows_of_the_query():
    queries, keys, heads = 800, 20_000, 4
    torch.manual_seed(0)
    layer = torch.nn.TransformerDecoderLayer(32, heads, 32, batch_first=True).eval()
    with torch.no_grad(), regard.capture(layer) as trace:
        layer(torch.randn(1, queries, 32), torch.randn(1, keys, 32))
    recipe = trace["multihead_attn"].recipe
    with Largest() as largest:
        ranking = trace.find(7, 19_000)
    assert largest.numbers < heads * queries * keys / 50
    rows = [recipe.at(0, head).weights()[0, 0, 7, 19_000] for head in range(heads)]
    assert as_map(ranking) == pytest.approx(
        {(None, head): float(rows[head]) for head in range(heads)}, rel=1e-4
    )


def test_gradients_and_autocast_change_nothing():
    leaf = weights(1).float().requires_grad_()
    plain = as_map(find_heads(leaf, "saw", "run", words=TEXT))
    with torch.autocast("cpu"):
        assert as_map(find_heads(leaf, "saw", "run", words=TEXT)) == plain


def test_a_ranking_prints_its_best_head_as_a_sentence():
    ranking = find_heads(LAYERS, "saw", "cats", words=TEXT)
    first, heading, *rows = repr(ranking).splitlines()
    best = ranking[0]
    share = f"{100 * best.weight:.0f} %"
    assert first == f"saw → cats {share} in layer {best.layer} head {best.head}"
    assert heading.split() == ["head", "weight", "to"] and len(rows) == 6
    assert ranking.to_dict()["head"] == [match.head for match in ranking]
    assert repr(HeadRanking([])) == "HeadRanking of no heads"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query": "dog", "words": TEXT}, "query='dog' is not among the words: .CLS. the cat saw"),
        ({"query": "caat", "words": TEXT}, "near: cat"),
        ({"query": 9, "words": TEXT}, "query=9 is outside the 9 positions"),
        ({"words": TEXT}, "expected a query, a key or a pattern"),
        ({"key": "cat", "pattern": "same", "words": TEXT}, "expected one of the two"),
        ({"pattern": "induction", "words": TEXT}, "expected one of previous, next, same, first"),
        ({"query": "cat"}, "the trace has no words"),
        ({"query": "cat", "words": TEXT[:4]}, r"the words fit none of the attentions.*\(9, 9\)"),
    ],
)
def test_what_cannot_be_answered_is_said(options, message):
    with pytest.raises(RegardError, match=message):
        find_heads(LAYERS, **options)


def test_a_trace_without_words_says_how_to_give_them():
    with pytest.raises(RegardError, match=r"capture\(model, tokens=…\)"):
        decoder_trace().find("love")


def test_positions_need_no_words():
    trace = decoder_trace()
    weights = trace["self_attn"].weights()
    ranking = trace.find(2, 3, part="encoder")
    assert as_map(ranking) == pytest.approx(
        {(None, h): float(weights[0, h, 2, 3]) for h in range(2)}
    )
    previous = trace.find(pattern="previous", part="encoder")
    expected = weights[0].diagonal(-1, 1, 2).mean(-1)
    assert as_map(previous) == pytest.approx({(None, h): float(expected[h]) for h in range(2)})


def test_marks_of_other_tokenizers_are_not_taken_for_wordpiece():
    tokens = ["###", "ĠInst", "ruction", "Ġdo"]
    assert find_heads(weights(4, 1, 2, 4, 4), "Instruction", "do", words=tokens)[0].key == "do"


def test_a_text_of_one_word_has_no_partner():
    assert len(find_heads(weights(5, 1, 2, 1, 1), "alone", words=["alone"])) == 0


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("query", [1.5, ["the"], True])
def test_what_is_no_word_and_no_position_is_said(query):
    with pytest.raises(RegardError, match="expected a word or a position"):
        find_heads(LAYERS, query, words=TEXT)


@pytest.mark.usefixtures("without_shape_checks")
def test_positions_may_be_numbers_of_other_packages():
    ranking = find_heads(LAYERS, torch.tensor(3), "run", words=TEXT)
    assert as_map(ranking) == as_map(find_heads(LAYERS, "saw", "run", words=TEXT))
