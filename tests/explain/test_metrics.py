"""Faithfulness against a plain reading of the definitions, one example and one removal a time."""

import itertools
import math

import pytest
import torch
from explain_models import CLS, padded, untrained

from regard import RegardError, explain
from regard.explain.metrics import at_bins, at_steps, ranks


@pytest.fixture(scope="module")
def model():
    return untrained().eval()


@pytest.fixture(scope="module")
def task(model):
    return explain.Task(model, padded(), special=[CLS], batch_size=7)


@pytest.fixture(scope="module")
def attribution():
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(2)).double()


def left(model, ids, mask, gone, label):
    """The probability of a label for one example without some positions."""
    mask = mask.clone()
    for position in gone:
        mask[position] = 0
    with torch.no_grad():
        logits = model(ids[None], mask[None])[0].tolist()
    return math.exp(logits[label]) / sum(math.exp(logit) for logit in logits)


def by_hand(model, attribution, bins, steps):
    """Comprehensiveness, sufficiency and the two areas, an example at a time."""
    data = padded()
    rows = []
    for ids, mask, scores in zip(data["input_ids"], data["attention_mask"], attribution.tolist()):
        free = [j for j in range(13) if mask[j] == 1 and ids[j] != CLS]
        order = sorted(free, key=lambda j: -scores[j])
        with torch.no_grad():
            label = int(model(ids[None], mask[None])[0].argmax())
        whole = left(model, ids, mask, [], label)
        falls, misses = [], []
        for share in bins:
            count = max(1, math.floor(share * len(free) + 0.5))
            falls.append(whole - left(model, ids, mask, order[:count], label))
            misses.append(whole - left(model, ids, mask, order[count:], label))
        counts = [math.floor(step / steps * len(free) + 0.5) for step in range(steps + 1)]
        went = [left(model, ids, mask, order[:count], label) for count in counts]
        came = [left(model, ids, mask, order[count:], label) for count in counts]
        areas = [
            sum(
                (b - a) / len(free) * (curve[i] + curve[i + 1]) / 2
                for i, (a, b) in enumerate(itertools.pairwise(counts))
            )
            for curve in (went, came)
        ]
        rows.append([sum(falls) / len(bins), sum(misses) / len(bins), *areas])
    return torch.tensor(rows, dtype=torch.float64).T


@pytest.mark.parametrize("steps", [4, 10, 40])
def test_the_definitions(model, task, attribution, steps):
    want = by_hand(model, attribution, explain.BINS, steps)
    got = (
        explain.comprehensiveness(task, attribution),
        explain.sufficiency(task, attribution),
        explain.deletion(task, attribution, steps=steps).area,
        explain.insertion(task, attribution, steps=steps).area,
    )
    torch.testing.assert_close(torch.stack(got), want, rtol=0, atol=1e-8)
    assert (want[0] - want[1]).abs().max() > 0.01, "or the measures could not be told apart"


def test_evaluate_measures_the_same(model, task, attribution):
    result = explain.evaluate(
        model, padded(), {"mine": attribution}, special=[CLS], batch_size=2, steps=4
    )
    want = by_hand(model, attribution, explain.BINS, 4)
    got = torch.stack(list(result.of("mine").values.values()))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-8)
    curve = explain.deletion(task, attribution, steps=4)
    torch.testing.assert_close(result.of("mine").deletion, curve.scores.mean(0))


def test_known_values_of_an_additive_model():
    """p = the sum of what is there: removing the k largest of 1…10 takes just those away."""
    value = torch.arange(1.0, 11.0).double()
    task = explain.Task(lambda x: x[..., 0].sum(1), value[None, :, None], lambda total: total)
    best, worst = value[None], -value[None]
    zero = explain.ZeroEmbedding()
    falls = [10, 10, 10, 19, 40]  # 1, 1, 1, 2 and 5 of the ten
    assert float(explain.comprehensiveness(task, best, zero)) == pytest.approx(sum(falls) / 5)
    assert float(explain.sufficiency(task, best, zero)) == pytest.approx(55 - sum(falls) / 5)
    assert float(explain.comprehensiveness(task, worst, zero)) == pytest.approx(
        (1 * 3 + 3 + 15) / 5
    )
    curve = explain.deletion(task, best, zero)
    assert curve.scores[0].tolist() == [55, 45, 36, 28, 21, 15, 10, 6, 3, 1, 0]
    assert float(curve.area) == pytest.approx((sum(curve.scores[0]) - 27.5) / 10)
    back = explain.insertion(task, best, zero)
    torch.testing.assert_close(back.scores, 55 - curve.scores)


def test_only_the_order_counts(task, attribution):
    for measure in (explain.comprehensiveness, explain.sufficiency):
        got = measure(task, attribution.exp() * 3 + 1)
        torch.testing.assert_close(got, measure(task, attribution), rtol=0, atol=0)


def test_bins_have_at_least_one_position_and_halves_are_rounded_up():
    removable = torch.arange(40)[None] < torch.tensor([40, 30, 10, 3, 1, 0])[:, None]
    assert at_bins(removable, explain.BINS).tolist() == [
        [1, 2, 4, 8, 20],
        [1, 2, 3, 6, 15],
        [1, 1, 1, 2, 5],
        [1, 1, 1, 1, 2],
        [1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0],
    ]
    assert at_steps(removable, 4)[[1, 3]].tolist() == [[0, 8, 15, 23, 30], [0, 1, 2, 2, 3]]


def test_ties_are_broken_by_chance_and_the_rest_comes_last():
    removable = torch.ones(2000, 6, dtype=torch.bool)
    removable[:, 5] = False
    even = torch.zeros(1, 2000, 6)
    even[..., 5] = 9.0
    placed = ranks(even, removable, seed=0)
    assert (placed[..., 5] == 5).all()
    first = (placed == 0).double().mean((0, 1))
    assert ((first[:5] - 0.2).abs() < 0.05).all(), "no place is favoured"
    assert torch.equal(placed, ranks(even, removable, seed=0))
    assert not torch.equal(placed, ranks(even, removable, seed=1))
    mixed = torch.tensor([[[1.0, 3.0, 2.0, 3.0, -5.0, 0.0]]])
    order = ranks(mixed, removable[:1], 0)[0, 0].tolist()
    assert sorted([order[1], order[3]]) == [0, 1] and order[:1] + order[2:3] == [3, 2]
    assert order[4:] == [4, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task, a: explain.comprehensiveness(task, a, bins=[]), r"bins=\(\)"),
        (lambda task, a: explain.comprehensiveness(task, a, bins=[0.1, 2.0]), "up to 1"),
        (lambda task, a: explain.deletion(task, a, steps=0), "steps=0"),
        (lambda task, a: explain.deletion(task, a[:, :4]), r"expected \(5, 13\)"),
        (lambda task, a: explain.deletion(task, a * torch.nan), "not finite"),
    ],
)
def test_what_is_refused(task, attribution, call, message, without_shape_checks):
    with pytest.raises(RegardError, match=message):
        call(task, attribution)


def test_what_stands_at_special_tokens_does_not_matter(task, attribution):
    other = attribution.masked_fill(~task.removable, torch.inf)
    torch.testing.assert_close(
        explain.comprehensiveness(task, other), explain.comprehensiveness(task, attribution)
    )
