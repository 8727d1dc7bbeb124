"""Batches: every sentence once, the same for the same seed and epoch, little padding."""

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError, ShapeError
from regard.translate.data import Examples, Pair, batches, collate, padded, padding
from regard.translate.vocabulary import WordVocabulary

lengths = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), max_size=60)


def of_lengths(found):
    return Examples([[7] * a for a, _ in found], [[8] * b for _, b in found])


def natural(count=2000):
    """Lengths as captions have them: a translation is about as long as its source."""
    chance = random.Random(0)
    sources = [max(3, round(chance.gauss(13, 4))) for _ in range(count)]
    return of_lengths([(a, max(3, round(a * chance.gauss(1.1, 0.15)))) for a in sources])


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 9), st.integers(0, 3), st.booleans())
def test_every_sentence_comes_once(found, sentences, epoch, shuffle):
    examples = of_lengths(found)
    made = batches(examples, sentences=sentences, seed=3, epoch=epoch, shuffle=shuffle)
    assert sorted(number for batch in made for number in batch) == list(range(len(found)))
    assert all(0 < len(batch) <= sentences for batch in made)
    assert len(made) == -(-len(found) // sentences)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 50))
def test_the_budget_of_tokens_holds(found, tokens):
    made = batches(of_lengths(found), tokens=tokens, seed=0, epoch=0)
    assert sorted(number for batch in made for number in batch) == list(range(len(found)))
    for batch in made:
        longest = max(max(found[number]) for number in batch)
        assert len(batch) == 1 or len(batch) * longest <= tokens
    in_order = batches(of_lengths(found), tokens=tokens, seed=0, epoch=0, shuffle=False)
    for batch, following in pairwise(in_order):  # one more would not have fitted
        longest = max(max(found[number]) for number in [*batch, following[0]])
        assert (len(batch) + 1) * longest > tokens


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 9), st.integers(1, 4))
def test_ranks_share_the_sentences(found, sentences, ranks):
    examples = of_lengths(found)
    if 0 < len(found) < ranks:
        return
    made = [
        batches(examples, sentences=sentences, seed=1, epoch=2, rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    assert len({len(batch) for batch in made}) == 1
    assert all(batch for of_rank in made for batch in of_rank)
    seen = [number for of_rank in made for batch in of_rank for number in batch]
    assert sorted(seen) == list(range(len(found)))
    if sentences > 1:
        assert all(len(batch) <= sentences for of_rank in made for batch in of_rank)


def test_the_order_follows_from_seed_and_epoch_alone():
    examples = natural(500)

    def order(seed, epoch):
        torch.manual_seed(random.randrange(1 << 30))
        before = torch.get_rng_state()
        made = batches(examples, sentences=16, seed=seed, epoch=epoch)
        assert torch.equal(before, torch.get_rng_state())
        return made

    assert order(1, 1) == order(1, 1)
    different = [order(*both) for both in ((1, 1), (1, 2), (2, 1), (2, 2))]
    assert all(a != b for i, a in enumerate(different) for b in different[:i])
    # other sentences go together, too: not the same batches in another order
    together = [{frozenset(batch) for batch in made} for made in different]
    assert len(together[0] & together[1]) < 0.2 * len(together[0])


def test_batches_are_shuffled_or_the_shortest_come_first():
    examples = natural()

    def longest(**options):
        made = batches(examples, sentences=32, seed=0, epoch=0, **options)
        return [max(len(examples.source[number]) for number in batch) for batch in made]

    assert longest() != sorted(longest())
    assert longest(shuffle=False) == sorted(longest(shuffle=False))


def test_there_is_little_padding():
    examples = natural()
    made = batches(examples, sentences=64, seed=0, epoch=0)
    share = padding(examples, made).share
    order = list(range(len(examples)))
    at_random = padding(examples, [order[place : place + 64] for place in range(0, 2000, 64)])
    assert share < 0.12 < 0.4 < at_random.share


def test_targets_of_like_length_meet_where_the_source_length_changes():
    examples = of_lengths([(source, target) for source in (3, 4) for target in (1, 2, 4, 6, 8)])
    made = batches(examples, sentences=2, seed=0, epoch=0)
    assert padding(examples, made).padding == 9  # 2 + 2 + 1 + 2 + 2; sorted both ways it is 15


def test_ranks_get_batches_of_like_length_at_the_same_place():
    examples = natural()
    made = [batches(examples, tokens=512, seed=0, epoch=0, rank=r, ranks=2) for r in range(2)]
    for one, other in zip(*made):
        sizes = [max(len(examples.source[number]) for number in batch) for batch in (one, other)]
        assert abs(sizes[0] - sizes[1]) <= 8


def test_padding_is_counted_on_both_sides():
    examples = of_lengths([(2, 5), (4, 1), (3, 3)])
    found = padding(examples, [[0, 1], [2]])
    assert (found.padding, found.total) == (2 + 4, 8 + 10 + 3 + 3)
    assert str(found) == "6 of 24 tokens are padding (25.0%)"
    assert padding(examples, []).share == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "batches: how large? expected tokens= or sentences="),
        ({"tokens": 0}, "batches: tokens=0, expected at least 1"),
        ({"sentences": -1}, "batches: sentences=-1, expected at least 1"),
        ({"sentences": 1, "ranks": 0}, "batches: ranks=0, expected at least 1"),
        ({"sentences": 1, "rank": 2, "ranks": 2}, "batches: rank=2, expected 0 to 1"),
        ({"sentences": 1, "ranks": 4}, "batches: 3 sentences are too few for 4 ranks"),
    ],
)
def test_sizes_of_batches_that_cannot_be(options, message):
    with pytest.raises(RegardError) as caught:
        batches(of_lengths([(1, 1)] * 3), seed=0, epoch=0, **options)
    assert str(caught.value) == message


def test_pairs_as_numbers_and_tensors():
    pairs = [Pair("a b c", "x"), Pair("b", "x y z"), Pair("", "y")]
    source = WordVocabulary(["a", "b", "c"])
    target = WordVocabulary(["x", "y", "z"])
    examples = Examples.of(pairs, source, target)
    assert examples.source == [[4, 5, 6, 2], [5, 2], [2]]
    assert examples.target == [[4, 2], [4, 5, 6, 2], [5, 2]]
    batch = collate(examples, [1, 0])
    assert len(batch) == 2
    assert batch.source.tolist() == [[5, 2, 0, 0], [4, 5, 6, 2]]
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.target_in.tolist() == [[1, 4, 5, 6], [1, 4, 0, 0]]
    assert batch.target_out.tolist() == [[4, 5, 6, 2], [4, 2, 0, 0]]
    assert batch.target_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.numbers.tolist() == [1, 0]
    assert batch.source.dtype == batch.numbers.dtype == torch.long
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in vars(moved).values()} == {"meta"}


def test_no_sentences_as_tensors():
    tokens, mask = padded([])
    assert tokens.shape == mask.shape == (0, 0)
    tokens, mask = padded([[], [4]])
    assert tokens.tolist() == [[0], [4]]
    assert mask.tolist() == [[False], [True]]
    assert collate(Examples([], []), []).source.dtype == torch.long
    assert batches(Examples([], []), sentences=3, seed=0, epoch=0, ranks=2) == []


def test_sides_of_different_lengths():
    with pytest.raises(ShapeError, match="2 sources, but 1 targets"):
        Examples([[2], [2]], [[2]])
