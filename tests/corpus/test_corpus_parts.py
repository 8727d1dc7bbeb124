"""Parts add up alike, whatever the order, the batches and the split; and survive being saved."""

import itertools
import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.corpus import Bins, Count, Largest, Mean, Ratio, Strongest, Total
from regard.errors import RegardError

HEADS, QUERIES = 2, 5


def examples(seed, number, centre, spread):
    """Values (example, head, query) and which of them count."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(number, HEADS, QUERIES, generator=generator, dtype=torch.float64)
    where = torch.rand(number, HEADS, QUERIES, generator=generator) < 0.7
    return centre + spread * values, where


def shown(numbers):
    return {n: json.dumps({"text": f"text {n}", "tokens": None}) for n in numbers}


def add_total(part, values, where, numbers):
    part.add(torch.where(where, values, 0.0).sum((0, 2)))


def add_count(part, values, where, numbers):
    part.add(where.sum((0, 2)))


def add_largest(part, values, where, numbers):
    part.add(values.amax((0, 2)))


def add_ratio(part, values, where, numbers):
    part.add(torch.where(where, values, 0.0).sum(2), where.sum(2))


def add_rows(part, values, where, numbers):
    part.add(values, where)


def add_strongest(part, values, where, numbers):
    scores, queries = torch.where(where, values, -torch.inf).max(2)
    part.add(scores, torch.stack([queries, queries], 2), numbers, shown(numbers))


PARTS = {
    "total": (Total, add_total),
    "count": (Count, add_count),
    "largest": (Largest, add_largest),
    "ratio": (Ratio, add_ratio),
    "mean": (Mean, add_rows),
    "bins": (lambda: Bins(-3.0, 3.0, 7), add_rows),
    "strongest": (lambda: Strongest(3), add_strongest),
}


def reloaded(make, part):
    """The part as it is read from a file: its arrays alone."""
    twin = make()
    twin.arrays = {name: array.clone() for name, array in part.arrays.items()}
    return twin


def merged(make, add, groups, rng):
    """Parts of groups, merged two by two in any order, each saved on the way."""
    parts = []
    for group in groups:
        part = make()
        if len(group[2]):
            add(part, *group)
        parts.append(part)
    while len(parts) > 1:
        rng.shuffle(parts)
        first, second = parts.pop(), parts.pop()
        first.merge(reloaded(make, second))
        parts.append(first)
    return parts[0]


def assert_alike(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name in mine:
        if mine[name].is_floating_point():
            finite = theirs[name][theirs[name].isfinite()].abs()
            scale = max(1.0, *finite.flatten().tolist())
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-12 * scale)
        else:
            assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("name", PARTS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    number=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 12), max_size=5),
    scale=st.sampled_from([(0.0, 1.0), (5.0, 1e-5), (1e6, 10.0)]),
)
def test_any_order_and_split_gives_the_same(name, seed, number, cuts, scale):
    make, add = PARTS[name]
    values, where = examples(seed, number, *scale)
    whole = make()
    add(whole, values, where, list(range(number)))

    rng = random.Random(seed)
    order = rng.sample(range(number), number)
    ends = [0, *sorted(min(cut, number) for cut in cuts), number]
    groups = [order[start:end] for start, end in itertools.pairwise(ends)]
    parts = [(values[group], where[group], group) for group in groups]
    assert_alike(merged(make, add, parts, rng).arrays, whole.arrays)


def test_a_mean_has_the_variance_of_its_values_and_the_error_of_its_examples():
    values, where = examples(0, 300, 5.0, 1e-5)
    mean = Mean()
    for start in range(0, 300, 7):
        mean.add(values[start : start + 7], where[start : start + 7])
    found = mean.result()
    for head in range(HEADS):
        rows = values[:, head][where[:, head]]
        assert found.number[head] == len(rows)
        torch.testing.assert_close(found.mean[head], rows.mean())
        torch.testing.assert_close(found.variance[head], rows.var(), rtol=1e-6, atol=0)
    assert found.examples.tolist() == [300, 300]


def test_the_error_is_that_of_examples_not_of_rows():
    """Rows of one text are alike: a thousand of them say no more than one."""
    generator = torch.Generator().manual_seed(1)
    errors, means = [], []
    for _ in range(200):
        texts = torch.randn(30, 1, 1, generator=generator, dtype=torch.float64)
        mean = Mean()
        mean.add(texts.expand(30, 1, 50), torch.ones(30, 1, 50, dtype=torch.bool))
        errors.append(float(mean.result().error))
        means.append(float(mean.result().mean))
    truth = float(torch.tensor(means).std())
    assert truth == pytest.approx(sum(errors) / len(errors), rel=0.15)


def test_intervals_hold_the_mean_as_often_as_they_say():
    generator = torch.Generator().manual_seed(2)
    held = 0
    for _ in range(500):
        lengths = torch.randint(1, 9, (60, 1), generator=generator).double()
        noise = torch.randn(60, 1, generator=generator, dtype=torch.float64)
        ratio = Ratio()
        ratio.add(lengths * (0.3 + 0.1 * noise), lengths)
        low, high = ratio.result().interval(0.9)
        held += int(low <= 0.3 <= high)
    assert 0.86 <= held / 500 <= 0.93


def test_nothing_has_no_mean():
    mean = Mean()
    mean.add(torch.ones(2, HEADS, QUERIES), torch.zeros(2, HEADS, QUERIES, dtype=torch.bool))
    found = mean.result()
    assert found.mean.isnan().all() and found.error.isnan().all() and found.variance.isnan().all()
    assert found.examples.tolist() == [0, 0]
    mean.add(*examples(0, 3, 0.0, 1.0))
    alone = Mean()
    alone.add(*examples(0, 3, 0.0, 1.0))
    assert_alike(mean.arrays, alone.arrays)


def test_a_single_example_has_no_error():
    ratio = Ratio()
    ratio.add(torch.tensor([[0.5]]), torch.tensor([[1.0]]))
    assert ratio.result().mean.item() == 0.5 and ratio.result().error.isnan().all()


def test_quantiles_are_off_by_no_more_than_a_bin():
    values, where = examples(3, 200, 0.0, 0.8)
    bins = Bins(-2.0, 2.0, 64)
    bins.add(values, where)
    found = bins.result()
    at = (0.0, 0.05, 0.5, 0.95, 1.0)
    for head in range(HEADS):
        inside = values[:, head][where[:, head]]
        truth = inside.quantile(torch.tensor(at, dtype=torch.float64), interpolation="nearest")
        middle = (truth > -2) & (truth < 2)
        off = (found.quantiles(*at)[head] - truth).abs()
        assert bool((off[middle] <= found.width).all())
        assert (found.least[head], found.largest[head]) == (inside.min(), inside.max())


def test_the_strongest_examples_are_those_of_a_sort():
    values, where = examples(4, 50, 0.0, 1.0)
    part = Strongest(4)
    for start in range(0, 50, 6):
        stop = min(start + 6, 50)
        add_strongest(part, values[start:stop], where[start:stop], list(range(start, stop)))
    scores = torch.where(where, values, -torch.inf).amax(2)
    for head, strong in enumerate(part.result()):
        truth = scores[:, head].argsort(descending=True)[:4].tolist()
        assert [one.example.number for one in strong] == truth
        assert [one.example.text for one in strong] == [f"text {n}" for n in truth]
    assert len(part.arrays["shown"]) <= 8  # texts of the others are dropped


def test_of_equal_scores_the_first_examples_count():
    part = Strongest(2)
    for number in (7, 3, 5):
        scores = torch.tensor([[0.5 + number * 1e-9]])  # noise is no rank
        part.add(scores, torch.zeros(1, 1, 2, dtype=torch.long), [number], shown([number]))
    assert [one.example.number for one in part.result()[0]] == [3, 5]


def test_other_sizes_are_refused():
    total = Total()
    total.add(torch.ones(3))
    with pytest.raises(
        RegardError, match=r"Total: \(4,\), expected \(3,\) as before: what is added"
    ):
        total.add(torch.ones(4))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Bins(1.0, 0.0, 5), "Bins: 5 bins from 1.0 to 0.0, expected low < high"),
        (lambda: Bins(0.0, 1.0, 0), "Bins: 0 bins"),
        (lambda: Strongest(0), "Strongest: k=0, expected at least 1"),
    ],
)
def test_parts_that_make_no_sense_are_refused(make, text):
    with pytest.raises(RegardError, match=text):
        make()


def test_questions_to_answers_that_make_no_sense_are_refused():
    ratio, bins = Ratio(), Bins(0.0, 1.0, 2)
    ratio.add(torch.ones(2, 1), torch.ones(2, 1))
    bins.add(torch.ones(1, 1, 1), torch.ones(1, 1, 1, dtype=torch.bool))
    with pytest.raises(RegardError, match=r"confidence=95.0, expected above 0 and below 1"):
        ratio.result().interval(95.0)
    with pytest.raises(RegardError, match=r"quantiles: \[50.0\], expected numbers from 0 to 1"):
        bins.result().quantiles(50.0)
