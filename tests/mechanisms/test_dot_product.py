"""Dot-product attention: eq. 1 in loops, the variance of its scores, and order."""

import math

import pytest
import torch
from torch import Tensor

from regard import masks
from regard.mechanisms import DotProduct


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def reading(query: Tensor, key: Tensor, value: Tensor, scale: float, allowed: Tensor) -> list:
    """Weights and output of one example, a pair at a time; `allowed` is (query, key)."""
    weights = torch.zeros(len(query), len(key), dtype=torch.float64)
    output = torch.zeros(len(query), value.shape[1], dtype=torch.float64)
    for i in range(len(query)):
        seen = [j for j in range(len(key)) if allowed[i, j]]
        exps = {j: math.exp(scale * sum(query[i] * key[j])) for j in seen}
        for j in seen:
            weights[i, j] = exps[j] / sum(exps.values())
            output[i] += weights[i, j] * value[j]
    return [weights, output]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("scale", "factor"), [(None, 6**-0.5), (1.0, 1.0), (0.3, 0.3)])
def test_equation_one_in_loops(scale: float | None, factor: float, causal: bool) -> None:
    query, key, value = normal(2, 3, 6), normal(2, 5, 6), normal(2, 5, 4)
    keep = torch.tensor([[True] * 5, [True, True, False, True, True]])
    attended = DotProduct(scale=scale)(
        query, key, value, mask=masks.padding(keep), causal=causal, weights=True
    )
    for b in range(2):
        allowed = keep[b].expand(3, 5)
        if causal:  # the last query stands at the last key
            allowed = allowed & (torch.arange(5) <= torch.arange(3)[:, None] + 2)
        weights, output = reading(query[b], key[b], value[b], factor, allowed)
        torch.testing.assert_close(attended.weights[b, 0], weights, rtol=0, atol=1e-12)
        torch.testing.assert_close(attended.output[b], output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [4, 64, 256])
@pytest.mark.parametrize("scaled", [True, False])
def test_scores_of_unit_normals_have_variance_width_and_one_when_scaled(
    width: int, scaled: bool
) -> None:
    """log A(q, 1) − log A(q, 2) = scale · q·(k₁ − k₂), of twice the variance of one score."""
    attn = DotProduct() if scaled else DotProduct(scale=1.0)
    logs = attn(normal(40_000, 1, width), normal(40_000, 2, width), weights=True).weights.log()
    variance = (logs[..., 0] - logs[..., 1]).var() / 2
    assert float(variance) == pytest.approx(1.0 if scaled else width, rel=0.05)


def test_without_positions_it_is_permutation_equivariant() -> None:
    attn, x, order = DotProduct(), torch.randn(2, 20, 8), torch.randperm(20)
    gap = (attn(x[:, order]).output - attn(x).output[:, order]).abs().max()
    assert gap < 1e-5
    ordered = (attn(x[:, order], causal=True).output - attn(x, causal=True).output[:, order]).abs()
    assert ordered.max() > 0.1  # the same comparison sees an attention that minds the order


def test_a_position_that_nobody_may_look_at_still_looks() -> None:
    """Hiding a position as key says nothing about it as query: `key` defaults to `query`."""
    x, allowed = normal(1, 4, 6), torch.ones(1, 1, 4, 4, dtype=torch.bool)
    allowed[..., 0] = False
    weights, output = reading(x[0], x[0], x[0], 6**-0.5, allowed[0, 0])
    for attended in (
        DotProduct()(x, x, mask=allowed, weights=True),
        DotProduct()(x, mask=allowed, weights=True),
    ):
        torch.testing.assert_close(attended.weights[0, 0], weights, rtol=0, atol=1e-12)
        torch.testing.assert_close(attended.output[0], output, rtol=0, atol=1e-12)
