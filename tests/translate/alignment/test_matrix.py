"""From pieces to words, from rows to readings, from weights to links; against plain loops."""

import pytest
import torch

from regard.aggregate import Words
from regard.errors import RegardError, ShapeError
from regard.translate.alignment import above, flipped, links_of, mutual, strongest, word_matrix

SOURCE = Words.given([0, 0, 1], ["un", "happy", "cat"])  # two words of three pieces
TARGET = Words.given([0, 1, 1, 2], ["le", "mal", "heureux", "chat"])


def some_weights(*sizes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator, dtype=torch.float64).softmax(-1).to(dtype)


def plain(weights, rows, columns, shift):
    """Sum over the pieces looked at, mean over the pieces that look."""
    made = torch.zeros(len(rows), len(columns), dtype=torch.float64)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            total = sum(float(weights[t + shift, s]) for t in row for s in column)
            made[i, j] = total / len(row)
    return made


@pytest.mark.parametrize(("reading", "shift"), [("output", 0), ("input", 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_words_are_sums_and_means_of_pieces(reading, shift, dtype):
    weights = some_weights(5, 4, dtype=dtype)  # both with the end
    made = word_matrix(weights, SOURCE, TARGET, reading=reading)
    expected = plain(weights, [[0], [1, 2], [3]], [[0, 1], [2]], shift)
    bound = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    assert (made.weights.double() - expected).abs().max() < bound and made.weights.dtype == dtype
    assert (made.source, made.target) == (["unhappy", "cat"], ["le", "malheureux", "chat"])


def test_the_readings_differ():
    weights = some_weights(5, 4)
    one, other = (
        word_matrix(weights, SOURCE, TARGET, reading=reading) for reading in ("output", "input")
    )
    assert (one.weights - other.weights).abs().max() > 0.05


def test_what_becomes_of_the_end():
    weights = some_weights(5, 4)
    left, again, kept = (
        word_matrix(weights, SOURCE, TARGET, end=end)
        for end in ("left out", "renormalised", "kept")
    )
    missing = torch.tensor([weights[0, 3], weights[1:3, 3].mean(), weights[3, 3]])
    assert torch.allclose(left.weights.sum(-1), 1 - missing)
    assert torch.allclose(again.weights.sum(-1), torch.ones(3, dtype=torch.float64))
    assert torch.allclose(again.weights, left.weights / left.weights.sum(-1, keepdim=True))
    assert kept.weights.shape == (4, 3) and kept.source[-1] == kept.target[-1] == "</s>"
    assert torch.allclose(kept.weights[:3, :2], left.weights)
    shifted = word_matrix(weights, SOURCE, TARGET, reading="input", end="kept")
    assert shifted.weights.shape == (3, 3) and shifted.target == ["le", "malheureux", "chat"]


def test_a_row_that_saw_only_the_end_stays_empty_and_has_no_link():
    weights = torch.tensor([[0.0, 1.0], [0.4, 0.6]])
    made = word_matrix(weights, Words.each(["a"]), Words.each(["b"]), end="renormalised")
    assert made.weights.tolist() == [[0.0]] and made.links() == frozenset()


def test_heads_come_through_and_ends_may_be_missing():
    weights = some_weights(3, 4, 3)
    made = word_matrix(weights, SOURCE, TARGET)
    for head in range(3):
        one = word_matrix(weights[head], SOURCE, TARGET)
        assert torch.equal(one.weights, made.weights[head])
    with pytest.raises(ShapeError, match=r"weights are \(3, 3, 2\), expected \(target, source\)"):
        made.links()


@pytest.mark.parametrize("reading", ["output", "input"])
@pytest.mark.parametrize("end", ["left out", "kept"])
def test_words_that_know_their_end_give_the_same(reading, end):
    weights = some_weights(5, 4)
    ended = Words.given([0, 1, 1, 2, None], [*TARGET.tokens, "</s>"])
    one = word_matrix(weights, SOURCE, TARGET, reading=reading, end=end)
    other = word_matrix(weights, SOURCE, ended, reading=reading, end=end)
    assert torch.equal(one.weights, other.weights) and one.target == other.target


def test_no_words_at_all():
    made = word_matrix(torch.ones(1, 1), Words.each([]), Words.each([]))
    assert made.weights.shape == (0, 0) and made.links() == made.links(mutual) == frozenset()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((7, 4), {}, "7 target pieces, but the target has 4, or 5 with the end of the sentence"),
        ((5, 6), {}, "6 source pieces, but the source has 3, or 4 with the end"),
        ((4, 4), {"reading": "input"}, "reading='input': weights have 4 rows, expected 5"),
        ((5, 4), {"reading": "shifted"}, "reading='shifted', expected 'output' or 'input'"),
        ((5, 4), {"end": "dropped"}, "end='dropped', expected 'left out', 'renormalised' or"),
    ],
)
def test_what_does_not_fit_is_refused(sizes, options, message):
    with pytest.raises(RegardError, match=message):
        word_matrix(some_weights(*sizes), SOURCE, TARGET, **options)


def test_links_are_those_of_plain_loops():
    for seed in range(20):
        weights = some_weights(6, 5, seed=seed)
        rows = weights.tolist()
        best = {(row.index(max(row)), t) for t, row in enumerate(rows)}
        columns = weights.T.tolist()
        both = {(s, t) for s, t in best if columns[s].index(max(columns[s])) == t}
        many = {(s, t) for t, row in enumerate(rows) for s, value in enumerate(row) if value >= 0.3}
        assert links_of(strongest(weights)) == best
        assert links_of(mutual(weights)) == both
        assert links_of(above(0.3)(weights)) == many
        assert both <= best


def test_of_equals_the_first_is_linked():
    assert links_of(strongest(torch.full((2, 3), 1 / 3))) == {(0, 0), (0, 1)}
    assert links_of(mutual(torch.full((2, 3), 1 / 3))) == {(0, 0)}


def test_flipping_twice_changes_nothing():
    links = links_of(strongest(some_weights(4, 6)))
    assert flipped(flipped(links)) == links
    assert flipped({(3, 1)}) == {(1, 3)}


def test_a_threshold_outside_is_refused():
    with pytest.raises(RegardError, match=r"threshold=1.5, expected above 0 and at most 1"):
        above(1.5)


def test_a_matrix_shows_itself():
    made = word_matrix(some_weights(3, 2), Words.each(["I", "sleep"]), Words.each(["je", "d", "!"]))
    assert repr(made) == "Matrix(3 × 2: 'je d !' looks at 'I sleep')"
    lines = str(made).splitlines()
    assert lines[0].split() == ["I", "sleep"] and len({len(line) for line in lines}) == 1
    for line, word, row in zip(lines[1:], made.target, made.weights.tolist()):
        assert line.split() == [word, *(f"{100 * value:.0f}" for value in row)]
    heads = word_matrix(some_weights(2, 3, 2), Words.each("ab"), Words.each("cde"))
    assert str(heads) == repr(heads) == "Matrix(2 × 3 × 2: 'c d e' looks at 'a b')"
    none = word_matrix(torch.zeros(0, 2), Words.each("ab"), Words.each([]))
    assert str(none).split() == ["a", "b"]
