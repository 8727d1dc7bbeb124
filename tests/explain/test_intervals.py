"""Bootstrap intervals: they hold the true mean about as often as they say."""

import itertools

import pytest
import torch

from regard import RegardError, explain


def test_the_interval_is_that_of_the_normal_law_for_many_values():
    values = torch.randn(4000, generator=torch.Generator().manual_seed(0)).double() * 2 + 1
    got = explain.bootstrap(values, confidence=0.9, resamples=4000)
    half = 1.645 * float(values.std()) / 4000**0.5
    assert got.mean == pytest.approx(float(values.mean()))
    assert got.low == pytest.approx(got.mean - half, abs=0.1 * half)
    assert got.high == pytest.approx(got.mean + half, abs=0.1 * half)


def test_it_holds_the_mean_as_often_as_it_says():
    generator = torch.Generator().manual_seed(1)
    draws = torch.rand(300, 40, generator=generator)
    found = [explain.bootstrap(draw, resamples=400, seed=i) for i, draw in enumerate(draws)]
    held = sum(one.low <= 0.5 <= one.high for one in found) / 300
    assert 0.89 <= held <= 0.98


def test_the_seed_decides_and_nan_is_left_out():
    values = torch.tensor([0.1, torch.nan, 0.5, 0.9])
    assert explain.bootstrap(values) == explain.bootstrap(values[[0, 2, 3]])
    state = torch.get_rng_state()
    assert explain.bootstrap(values, seed=3, resamples=50) != explain.bootstrap(
        values, resamples=50
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert str(explain.bootstrap(torch.ones(3))) == "1.000 [1.000, 1.000]"
    assert torch.tensor(explain.bootstrap(values[1:2])).isnan().all()


def test_sign_flips_count_every_choice_of_signs():
    values = torch.tensor([0.4, -0.1, 0.3, 0.2, 0.0]).double()
    sums = [
        sum(sign * float(value) for sign, value in zip(signs, values))
        for signs in itertools.product([1, -1], repeat=5)
    ]
    want = sum(one >= float(values.sum()) - 1e-12 for one in sums) / 32
    assert explain.sign_flips(values) == want == 4 / 32
    assert explain.sign_flips(torch.cat([values, values[:1] * torch.nan])) == want
    assert explain.sign_flips(values[:0]) == 1.0 == explain.sign_flips(torch.zeros(4))


def test_sign_flips_are_right_about_chance():
    """Of differences that are nothing but noise, about 5 % are found below 0.05."""
    draws = torch.randn(400, 30, generator=torch.Generator().manual_seed(3))
    found = torch.tensor([explain.sign_flips(draw, seed=i) for i, draw in enumerate(draws)])
    assert 0.02 <= float((found <= 0.05).double().mean()) <= 0.08
    assert explain.sign_flips(draws[0] + 2.0) < 0.001


def test_confidence_is_a_share(without_shape_checks):
    with pytest.raises(RegardError, match="confidence=95"):
        explain.bootstrap(torch.ones(3), confidence=95)
