"""Other weights, the same output: where there must be some, and where there can be none."""

import math

import pytest
import torch
from torch import nn

import regard
from regard import RegardError, explain


def peaked(examples=4, keys=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(examples, keys, generator=generator).double()
    scores[torch.arange(examples), torch.arange(examples) % keys] += 7.0
    return scores.softmax(-1)


def pooled(values, classes):
    return lambda weights: (torch.einsum("ek,ekw->ew", weights, values) @ classes).softmax(-1)


def divergence(first, second):
    """Jensen–Shannon of two rows, term by term."""
    total = 0.0
    for p, q in zip(first.tolist(), second.tolist()):
        m = (p + q) / 2
        total += (p * math.log(p / m) if p else 0.0) / 2 + (q * math.log(q / m) if q else 0.0) / 2
    return total


def test_equal_values_let_one_look_anywhere():
    torch.manual_seed(0)
    weights = peaked()
    values = torch.randn(4, 1, 5).double().expand(4, 8, 5)
    answer = pooled(values, torch.randn(5, 3).double())
    found = explain.adversarial(weights, answer, epsilon=0.001, restarts=2, steps=150)
    assert (found.divergence > 0.98 * found.largest).all()
    assert (found.largest > 0.66).all() and (found.largest <= math.log(2)).all()
    assert (found.change < 1e-6).all()
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(4).double())


def test_a_value_that_alone_matters_holds_the_weights():
    """The weight of the first key is the probability itself, so it may not change."""
    weights = torch.tensor([[0.97, 0.01, 0.01, 0.01]]).double()

    def answer(weights):
        return torch.stack([weights[:, 0], 1 - weights[:, 0]], -1)

    found = explain.adversarial(weights, answer, epsilon=0.001)
    # the others may trade what they have among themselves: 0.03 in all
    assert float(found.divergence) < 0.03 * math.log(2) + 0.001
    assert float(found.largest) > 0.65
    loose = explain.adversarial(weights, answer, epsilon=0.5, restarts=2, steps=100)
    assert float(loose.divergence) > 5 * float(found.divergence)


def test_what_is_reported_is_true():
    torch.manual_seed(1)
    weights, values = peaked(6, 5), torch.randn(6, 5, 4).double()
    answer = pooled(values, torch.randn(4, 3).double())
    found = explain.adversarial(weights, answer, epsilon=0.05, restarts=2, steps=150)
    own, other = answer(weights), answer(found.weights)
    change = (own - other).abs().sum(1) / 2
    torch.testing.assert_close(found.change, change, rtol=0, atol=1e-10)
    assert (change <= 0.05).all()
    want = [divergence(*pair) for pair in zip(weights, found.weights)]
    assert found.divergence.tolist() == pytest.approx(want, abs=1e-8)
    assert (found.divergence <= found.largest + 1e-12).all()
    assert (found.divergence > 0.01).all() and "6 examples" in repr(found)


def test_the_largest_is_no_smaller_than_any_other():
    weights = peaked(1, 6)
    largest = explain.adversarial(
        weights, lambda w: torch.full((1, 2), 0.5).double() + 0 * w[:, :2], steps=5
    )
    others = torch.rand(20000, 6, generator=torch.Generator().manual_seed(2)).double()
    others = torch.cat([(others * 20).softmax(-1), torch.eye(6).double()])
    reached = explain.jensen_shannon(weights.expand_as(others), others)
    assert float(reached.max()) == pytest.approx(float(largest.largest), abs=1e-12)


def test_it_finds_what_a_search_over_a_grid_finds():
    """Three keys, so that all weights can be tried."""
    torch.manual_seed(3)
    weights = torch.tensor([[0.7, 0.2, 0.1]]).double()
    values, classes = torch.randn(1, 3, 4).double(), torch.randn(4, 2).double()
    answer = pooled(values, classes)
    found = explain.adversarial(weights, answer, epsilon=0.05)
    ticks = torch.linspace(0, 1, 1001).double()
    first, second = torch.meshgrid(ticks, ticks, indexing="ij")
    grid = torch.stack([first, second, 1 - first - second], -1).reshape(-1, 3)
    grid = grid[grid[:, 2] >= -1e-12].clamp_min(0.0)
    answers = pooled(values.expand(len(grid), 3, 4), classes)(grid)
    fits = (answers - answer(weights)).abs().sum(1) / 2 <= 0.05
    best = explain.jensen_shannon(weights.expand_as(grid), grid)[fits].max()
    assert float(found.divergence) == pytest.approx(float(best), rel=0.03)


def test_the_seed_decides_and_nothing_else_is_touched():
    torch.manual_seed(4)
    weights, values = peaked(), torch.randn(4, 8, 4).double()
    answer = pooled(values, torch.randn(4, 3).double())
    state = torch.get_rng_state()
    first, again = (explain.adversarial(weights, answer, steps=40) for _ in range(2))
    assert torch.equal(first.weights, again.weights)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.no_grad():
        inside = explain.adversarial(weights, answer, steps=40)
    assert torch.equal(first.weights, inside.weights)


def test_masked_keys_stay_without_weight():
    weights = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.0, 0.0]]).double()

    def answer(weights):
        return torch.full((2, 2), 0.5).double() + 0 * weights.sum()

    found = explain.adversarial(weights, answer, steps=50)
    assert found.weights[0, 2] == 0 and (found.weights[1] == 0).all()
    assert found.divergence[0] > 0.3 and found.divergence[1] == 0 == found.largest[1]
    free = explain.adversarial(
        weights, answer, allowed=torch.tensor([[True] * 3, [False] * 3]), steps=50
    )
    assert free.weights[0, 2] > 0.9 and free.divergence[0] > found.divergence[0]


class Pooler(nn.Module):
    """Attention pooling by one learned query."""

    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 6))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.classes = nn.Linear(6, 2)

    def forward(self, x):
        query = self.query.expand(len(x), -1, -1)
        return self.classes(self.attention(query, x, x, need_weights=False)[0][:, 0])


def test_a_record_of_a_model_that_pools():
    torch.manual_seed(5)
    model, x = Pooler(), torch.randn(3, 7, 6)
    with torch.no_grad(), regard.capture(model, values=True) as trace:
        logits = model(x)
    record = trace[0]
    value = record.recipe.plain().value.detach()  # (example, head, key, width)

    def answer(weights):
        mixed = (weights @ value).transpose(1, 2).flatten(2)
        return model.classes(model.attention.out_proj(mixed)[:, 0]).softmax(-1)

    torch.testing.assert_close(answer(record.weights()), logits.softmax(-1))
    found = explain.adversarial(record, answer, epsilon=0.01, restarts=2, steps=100)
    assert found.weights.shape == (3, 2, 1, 7) and found.divergence.shape == (3,)
    assert (found.change <= 0.01).all() and (found.divergence > 0.05).all()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    weights = peaked().to(dtype)
    found = explain.adversarial(
        weights, lambda w: torch.full((4, 2), 0.5) + 0 * w[:, :2].float(), steps=100
    )
    assert found.weights.dtype == torch.float32 and (found.divergence > 0.6).all()


@pytest.mark.parametrize(
    ("options", "answer", "message"),
    [
        ({"epsilon": 2.0}, None, "epsilon=2.0"),
        ({"restarts": 0}, None, "restarts=0"),
        ({}, lambda w: w * 3, "whose rows are not negative and sum to 1"),
        ({}, lambda w: w.sum(), r"gives \(\)"),
    ],
)
def test_what_is_refused(options, answer, message):
    with pytest.raises(RegardError, match=message):
        explain.adversarial(peaked(), answer or (lambda w: w), **options)
