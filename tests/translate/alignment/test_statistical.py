"""Alignment by counting: it learns from the pairs alone."""

import random

import pytest

from regard.errors import RegardError
from regard.translate.alignment import Gold, error_rate
from regard.translate.alignment.statistical import statistical_links

WORDS = 30


def pairs_with_links(count=400, seed=0):
    """Translations word by word, in another order, with words on both sides that have no other."""
    chooser = random.Random(seed)
    sources, targets, links = [], [], []
    for _ in range(count):
        words = [chooser.randrange(WORDS) for _ in range(chooser.randint(1, 8))]
        order = list(range(len(words)))
        if len(words) > 2:  # two neighbours change places
            swap = chooser.randrange(len(words) - 1)
            order[swap], order[swap + 1] = order[swap + 1], order[swap]
        target = [100 + words[position] for position in order]
        pair_links = {(source, place) for place, source in enumerate(order)}
        if chooser.random() < 0.5:  # a word of the target that translates nothing
            target.append(99)
        sources.append(words)
        targets.append(target)
        links.append(frozenset(pair_links))
    return sources, targets, links


def test_it_links_words_with_their_translations():
    sources, targets, links = pairs_with_links()
    answers = statistical_links(sources, targets)
    error = error_rate(answers, [Gold.of(pair_links) for pair_links in links])
    assert error.error < 0.05, str(error)
    assert statistical_links(sources, targets) == answers


def test_both_directions_give_the_same_links():
    sources, targets, _ = pairs_with_links(100)
    forward = statistical_links(sources, targets)
    backward = statistical_links(targets, sources)
    same = sum(
        pair_links == {(target, source) for source, target in flipped}
        for pair_links, flipped in zip(forward, backward)
    )
    assert same >= 0.98 * len(forward)


def test_empty_sides_have_no_links():
    links = statistical_links([[1, 2], [], [1]], [[3, 4], [3], []])
    assert links[1] == links[2] == frozenset()
    assert statistical_links([], []) == []


def test_refusals():
    with pytest.raises(RegardError, match="there are 1 sources, but 2 targets"):
        statistical_links([[1]], [[1], [2]])
    with pytest.raises(RegardError, match="iterations is 0, expected at least 1"):
        statistical_links([[1]], [[1]], iterations=0)
