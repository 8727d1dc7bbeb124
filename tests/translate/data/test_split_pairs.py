"""The split: no source in two parts, and each sentence's part its own affair."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import RegardError
from regard.translate.data import Pair, split

sentences = st.lists(st.text(alphabet="abAB é\u00a0ﬁf", max_size=6), max_size=40)
shares = st.floats(0, 0.49)


def same(source):
    return " ".join(source.replace("ﬁ", "fi").lower().split())


@settings(max_examples=60, deadline=None)
@given(sentences, shares, shares, st.integers(0, 5))
def test_no_source_is_in_two_parts(texts, valid, test, seed):
    pairs = [Pair(text, str(line), line) for line, text in enumerate(texts)]
    parts = split(pairs, valid=valid, test=test, seed=seed)
    assert sorted(pair.line for part in parts for pair in part) == list(range(len(texts)))
    assert all([pair.line for pair in part] == sorted(pair.line for pair in part) for part in parts)
    train, held, tested = ({same(pair.source) for pair in part} for part in parts)
    assert not (train & held or train & tested or held & tested)


@settings(max_examples=60, deadline=None)
@given(sentences, shares, shares, st.randoms(use_true_random=False))
def test_the_part_of_a_sentence_does_not_depend_on_the_others(texts, valid, test, chance):
    def part_of(texts):
        parts = split([Pair(text, "") for text in texts], valid=valid, test=test)
        return {pair.source: name for name, part in parts._asdict().items() for pair in part}

    everything = part_of(texts)
    some = chance.sample(texts, len(texts) // 2)
    assert part_of(some) == {text: everything[text] for text in some}


@settings(max_examples=60, deadline=None)
@given(sentences, st.data())
def test_sizes_by_number_are_distinct_sources(texts, data):
    distinct = len(set(map(same, texts)))
    test = data.draw(st.integers(0, distinct))
    valid = data.draw(st.integers(0, distinct - test))
    parts = split([Pair(text, "") for text in texts], valid=valid, test=test)
    counts = [len({same(pair.source) for pair in part}) for part in parts]
    assert counts == [distinct - test - valid, valid, test]


def many(count=4000):
    return [Pair(f"sentence {number % (count // 2)}", str(number)) for number in range(count)]


def test_shares_are_about_right():
    train, valid, test = split(many(), valid=0.1, test=0.2)
    assert abs(len(valid) / 4000 - 0.1) < 0.02
    assert abs(len(test) / 4000 - 0.2) < 0.03
    assert len(train) + len(valid) + len(test) == 4000


def test_another_seed_is_another_split_and_the_order_of_the_file_is_none():
    pairs = many()
    first = split(pairs, valid=100, test=100, seed=1)
    assert {p.source for p in first.test} != {
        p.source for p in split(pairs, valid=100, test=100).test
    }
    random.Random(0).shuffle(pairs)
    again = split(pairs, valid=100, test=100, seed=1)
    assert {p.target for p in again.test} == {p.target for p in first.test}
    assert {p.target for p in again.valid} == {p.target for p in first.valid}


def test_the_split_stays_over_releases():
    numbers = [pair.target for pair in split(many(200), valid=3, test=2, seed=7).test]
    assert numbers == ["20", "63", "120", "163"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"valid": 3, "test": 2},
            "valid=3, expected from 0 to 2: there are 4 distinct sources, of which test takes 2",
        ),
        ({"valid": -1}, "valid=-1, expected from 0 to 4: there are 4 distinct sources"),
        ({"valid": 1.0}, "valid=1.0, expected a share below 1, all shares together too"),
        (
            {"valid": 0.6, "test": 0.6},
            "valid=0.6, expected a share below 1, all shares together too",
        ),
    ],
)
def test_sizes_that_cannot_be(sizes, message):
    with pytest.raises(RegardError) as caught:
        split([Pair(text, "") for text in "abcd"], **sizes)
    assert str(caught.value) == message


def test_nothing_to_split():
    assert split([], valid=0.1) == ([], [], [])
