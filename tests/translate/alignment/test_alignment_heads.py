"""A known alignment is planted in one head of each direction; the choice must find both."""

import pytest
import torch

from regard.errors import RegardError
from regard.translate.alignment import (
    AllHeads,
    Gold,
    Head,
    Matrix,
    by_agreement,
    by_error,
    choose,
    error_rate,
    flipped,
    head_named,
    heads_of,
    mutual,
    usual_head,
)

SITES = {"0.cross": 3, "1.cross": 2}
ORDERS = [torch.randperm(size, generator=torch.Generator().manual_seed(size)) for size in (4, 5, 9)]


def planted(orders, place, seed):
    """Heads that look anywhere, but for one, which looks where `orders` say."""
    generator = torch.Generator().manual_seed(seed)
    heads = heads_of(SITES)
    matrices = []
    for order in orders:
        size = len(order)
        weights = torch.rand(len(heads), size, size, generator=generator).softmax(-1)
        weights[place] = 0.1 * weights[place] + 0.9 * torch.eye(size)[order]
        matrices.append(Matrix(weights, ["s"] * size, ["t"] * size))
    return AllHeads(heads, matrices)


GOLD = [Gold.of((int(source), target) for target, source in enumerate(order)) for order in ORDERS]
FORWARD = planted(ORDERS, 5, 0)
BACKWARD = planted([order.argsort() for order in ORDERS], 1, 1)


def test_the_head_with_the_least_error_comes_first():
    found = by_error(FORWARD, GOLD)
    assert found[0].head == Head("1.cross", 1) and found[0].error.error == 0
    errors = [one.error.error for one in found]
    assert errors == sorted(errors) and errors[1] > 0.3 and len(found) == 7


def test_the_heads_that_agree_most_come_first():
    found = by_agreement(FORWARD, BACKWARD)
    assert found[0][:2] == (Head("1.cross", 1), Head("0.cross", 1))
    assert found[0].agreement == 1 and found[1].agreement < 0.8 and len(found) == 49


def test_agreement_is_that_of_sets():
    for one in by_agreement(FORWARD, BACKWARD):
        there = FORWARD.links(one.forward)
        back = [flipped(links) for links in BACKWARD.links(one.backward)]
        met = sum(len(a & b) for a, b in zip(there, back))
        total = sum(len(a) + len(b) for a, b in zip(there, back))
        assert one.agreement == pytest.approx(2 * met / total)


def test_the_links_of_a_head_are_those_of_its_matrix():
    head = Head("0.cross", None)
    matrices = FORWARD.of(head)
    assert FORWARD.links(head) == [matrix.links(mutual) for matrix in matrices]
    assert error_rate(FORWARD.links(head), GOLD).error > 0.3


def test_the_choice_goes_by_what_is_at_hand():
    planted_heads = (Head("1.cross", 1), Head("0.cross", 1))
    assert choose(FORWARD, BACKWARD, GOLD) == (*planted_heads, "least alignment error")
    assert choose(FORWARD, gold=GOLD)[:2] == (planted_heads[0], None)
    agreed = choose(FORWARD, BACKWARD)
    assert agreed == (*planted_heads, "most agreement of both directions, 100.0 %")
    assert choose(FORWARD)[:2] == (Head("0.cross", None), None)  # of two sites the last but one


def test_a_head_of_a_models_weights():
    weights = {"a": torch.rand(2, 3, 4), "b": torch.rand(1, 3, 4)}
    assert torch.equal(Head("a", 1).of(weights), weights["a"][1])
    assert torch.allclose(Head("a", None).of(weights), (weights["a"][0] + weights["a"][1]) / 2)
    with pytest.raises(RegardError, match="there is no site 'c'; there are a, b"):
        Head("c", 0).of(weights)
    with pytest.raises(RegardError, match="head 2 of 'a', expected 0 to 1"):
        Head("a", 2).of(weights)


def test_what_is_not_there_is_refused():
    with pytest.raises(RegardError, match=r"there is no 2.cross, head 0; there are 0.cross, head"):
        FORWARD.links(Head("2.cross", 0))
    with pytest.raises(RegardError, match="forward has 3 sentences, backward 0"):
        by_agreement(FORWARD, AllHeads([], []))


def test_nothing_to_choose_from_is_said():
    none = AllHeads([], [])
    with pytest.raises(RegardError, match="there are no sentences, so there is no head to choose"):
        choose(none)
    with pytest.raises(RegardError, match="there are no sentences, so there is no head to choose"):
        choose(none, none, [])
    with pytest.raises(RegardError, match="usual_head: there are no heads"):
        usual_head([])


def test_heads_by_name():
    heads = heads_of({"0.cross": 2, "1.cross": 1})
    assert [head.name for head in heads] == ["0.cross:0", "0.cross:1", "0.cross", "1.cross:0"]
    for head in heads:
        assert head_named(head.name, heads) == head
    assert head_named("1.cross", heads) == Head("1.cross", 0), "it has no other"
    wanted = "--backward-head 2.cross, expected one of 0.cross:0, 0.cross:1, 0.cross, 1.cross:0"
    with pytest.raises(RegardError, match=wanted):
        head_named("2.cross", heads, "--backward-head")
