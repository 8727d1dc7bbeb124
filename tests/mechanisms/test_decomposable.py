"""Decomposable attention: the attend step in loops, both ways, and what F is applied to."""

import math

import pytest
import torch
from torch import Tensor, nn

from regard import masks
from regard.errors import ShapeError
from regard.mechanisms import Decomposable


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def features() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)).double()


@torch.no_grad()
def reading(f: nn.Module, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """β and its weights, for one pair of sentences (word, width)."""
    weights = torch.zeros(len(a), len(b), dtype=torch.float64)
    beta = torch.zeros_like(a)
    for i in range(len(a)):
        exps = [math.exp(sum(f(a[i]) * f(b[j]))) for j in range(len(b))]  # no 1/√d
        for j in range(len(b)):
            weights[i, j] = exps[j] / sum(exps)
            beta[i] += weights[i, j] * b[j]
    return beta, weights


def test_both_directions_of_the_attend_step_in_loops() -> None:
    f = features()
    attn, a, b = Decomposable(f), 2 * normal(2, 4, 6), 2 * normal(2, 5, 6)
    sizes = {"a": [4, 2], "b": [3, 5]}
    see_a, see_b = (masks.lengths(torch.tensor(sizes[s]), n) for s, n in (("a", 4), ("b", 5)))
    beta, alpha = attn(a, b, mask=see_b, weights=True), attn(b, a, mask=see_a, weights=True)
    for n, (length_a, length_b) in enumerate(zip(sizes["a"], sizes["b"])):
        real_a, real_b = a[n, :length_a], b[n, :length_b]
        for got, want, rows, keys in (
            (beta, reading(f, real_a, real_b), length_a, length_b),
            (alpha, reading(f, real_b, real_a), length_b, length_a),
        ):
            torch.testing.assert_close(got.output[n, :rows], want[0], rtol=0, atol=1e-12)
            block = got.weights[n, 0, :rows, :keys]
            torch.testing.assert_close(block, want[1], rtol=0, atol=1e-12)
            assert not got.weights[n, 0, :, keys:].any()


def test_two_softmaxes_over_one_matrix() -> None:
    """log β-weights and log α-weights differ by one number a row and one a column."""
    attn, a, b = Decomposable(features()), normal(1, 4, 6), normal(1, 5, 6)
    rows = attn(a, b, weights=True).weights[0, 0].log()
    columns = attn(b, a, weights=True).weights[0, 0].log().T
    gap = rows - columns
    gap = gap - gap[:1] - gap[:, :1] + gap[:1, :1]
    torch.testing.assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-12)
    assert (rows.exp() - columns.exp()).abs().max() > 0.01  # one matrix, but two softmaxes


def test_features_are_of_each_side_by_itself() -> None:
    f, a, b, inputs = features(), normal(2, 4, 6), normal(2, 5, 6), []
    attn = Decomposable(f)
    handle = f.register_forward_hook(lambda module, args, out: inputs.append(args[0]))
    attn(a, b)
    words = [features.shape[0] * features.shape[1] for features in inputs]
    assert sorted(words) == [8, 10]  # not pairs
    assert any(torch.equal(features, a) for features in inputs)
    assert any(torch.equal(features, b) for features in inputs)
    inputs.clear()
    state = attn.fix(b)
    attn(a[:, :1], state=attn(a[:, :2], state=state).state)
    assert [features.shape[1] for features in inputs] == [5, 2, 1]  # F(b) once
    handle.remove()


def test_sides_of_different_width_are_refused() -> None:
    with pytest.raises(ShapeError, match="Decomposable: key: axis width has size 7, expected 6"):
        Decomposable(features())(normal(1, 2, 6), normal(1, 3, 7))
