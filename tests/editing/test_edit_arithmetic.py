"""Factors of 0, weights that underflow, infinite biases; and values that do not fit."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from families import FAMILIES
from small_attention import Attention, X
from torch import Tensor

import regard
from regard.editing import bias, multiply, replace, replace_values, scale
from regard.errors import DtypeError, RegardError, ShapeError


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("fused", [True, False])
def test_a_factor_of_0_has_a_gradient(fused: bool) -> None:
    model = Attention(fused)
    factor = torch.ones(1, 1, 1, 6)
    factor[..., 2] = 0
    factor.requires_grad_()

    def loss(factor: Tensor) -> Tensor:
        with regard.edit(model, multiply(factor)):
            return (model(X) * torch.arange(192.0).view(2, 6, 16).sin()).sum()

    loss(factor).backward()
    step = torch.zeros_like(factor)
    step[..., 2] = 1e-2
    with torch.no_grad():
        slope = (-3 * loss(factor) + 4 * loss(factor + step) - loss(factor + 2 * step)) / 2e-2
    assert float(slope.abs()) > 0.1
    torch.testing.assert_close(factor.grad[0, 0, 0, 2], slope, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("fused", [True, False])
def test_uniform_is_over_what_may_be_seen_not_over_what_is_left(fused: bool) -> None:
    """Most weights of peaked attention are 0 in float16."""
    model = Attention(fused, causal=True).half()
    with torch.no_grad():
        model.qkv.weight[:32] *= 30
        with regard.edit(model, replace("uniform")), regard.capture(model) as trace:
            model(X.half())
    past = torch.ones(6, 6).tril()
    expected = (past / past.sum(-1, keepdim=True)).expand(2, 4, 6, 6)
    torch.testing.assert_close(trace[0].weights().float(), expected, atol=1e-3, rtol=0)


def test_an_infinite_bias_times_0() -> None:
    model = Attention(True)
    changes = bias(-torch.inf, keys=0), scale(0.0)
    with torch.no_grad(), regard.edit(model, *changes), regard.capture(model) as trace:
        model(X)
    expected = torch.tensor([0, 0.2, 0.2, 0.2, 0.2, 0.2]).expand(2, 4, 6, 6)
    torch.testing.assert_close(trace[0].weights(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: replace(torch.ones(1, 1, 6, 6, dtype=torch.long)), DtypeError, "torch.int64"),
        (lambda: replace(torch.full((1, 1, 6, 6), torch.nan)), RegardError, "it holds NaN"),
        (lambda: replace_values(torch.zeros(1, 1, 6, 4, dtype=torch.long)), DtypeError, "int64"),
        (lambda: replace_values(torch.full((1, 1, 1, 4), torch.nan)), RegardError, "holds NaN"),
    ],
)
def test_weights_and_values_that_are_no_numbers(make, kind, text) -> None:
    with pytest.raises(kind, match=text):
        make()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (torch.zeros(1, 3, 1, 4), r"axis head has size 3, expected 1 or 4 at 'Attention'"),
        (torch.zeros(3, 1, 1, 4), r"axis batch has size 3, expected 1 or 2 at 'Attention'"),
    ],
)
def test_values_that_do_not_fit(values: Tensor, text: str) -> None:
    model = Attention(True)
    with pytest.raises(ShapeError, match=text), regard.edit(model, replace_values(values)):
        model(X)


def test_records_of_a_longer_run() -> None:
    model = Attention(True)
    with torch.no_grad():
        longer = regard.trace(model, torch.randn(2, 9, 16))
        for source in (longer, longer[0]):
            with (
                pytest.raises(ShapeError, match=r"axis 2 \(query\) has size 9, expected 1 or 6 at"),
                regard.edit(model, replace(source)),
            ):
                model(X)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1, 1, 9, 9), r"axis 2 \(query\) has size 9, expected 1 or 6 at 'Attention'"),
        ((1, 1, 1, 9), r"axis 3 \(key\) has size 9, expected 1 or 6 at 'Attention'"),
        ((1, 1, 6, 5), r"axis 3 \(key\) has size 5, expected 1 or at least 6 at"),
    ],
)
def test_weights_of_another_length(shape: tuple[int, ...], text: str) -> None:
    model = Attention(True)
    with pytest.raises(ShapeError, match=text), regard.edit(model, replace(torch.ones(shape))):
        model(X)


def test_values_of_a_longer_run() -> None:
    model = Attention(True)
    text = "axis key has size 9, expected 1 or 6 at 'Attention'"
    with (
        pytest.raises(ShapeError, match=text),
        regard.edit(model, replace_values(torch.zeros(1, 1, 9, 4))),
    ):
        model(X)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_longer_weights_over_a_cache(implementation: str) -> None:
    """One tensor serves all steps, if it gives no weight to keys that are not there."""
    torch.manual_seed(0)
    model, words = FAMILIES["llama"].build(implementation), torch.randint(5, 90, (2, 8))
    weights = torch.rand(1, 4, 8, 8).tril()
    with torch.no_grad():
        with regard.edit(model, replace(weights)):
            whole = model(words).last_hidden_state
            cache = hf.DynamicCache(config=model.config)
            steps = [
                model(words[:, start:end], past_key_values=cache).last_hidden_state
                for start, end in ((0, 5), (5, 7), (7, 8))
            ]
        weights[..., 4, 6] = 0.1
        with (
            pytest.raises(ShapeError, match=r"axis 3 \(key\) has size 8, expected 1 or 5"),
            regard.edit(model, replace(weights)),
        ):
            model(words[:, :5], past_key_values=hf.DynamicCache(config=model.config))
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=1e-5, rtol=0)


def test_repr_says_what_is_not_renormalised() -> None:
    assert repr(multiply(0.5, renormalise=False)) == "multiply(0.5, renormalise=False)"
    assert repr(multiply(0.5)) == "multiply(0.5)"
