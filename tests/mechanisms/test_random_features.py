"""Random features of the Performer: the estimator, its draws, and what keeps it within range."""

import math

import pytest
import torch

from regard.errors import RegardError, ShapeError
from regard.mechanisms import HyperbolicFeatures, PositiveFeatures, TrigonometricFeatures
from regard.mechanisms.random_features import (
    independent_rows,
    orthogonal_rows,
    positive_features,
)


def hyperbolic_features(x, rows):
    """(2m)^(-1/2) exp(± ωᵀx - ‖x‖²/2), as it stands."""
    return positive_features(x, torch.cat([rows, -rows], -2))


def trigonometric_features(x, rows):
    """m^(-1/2) exp(‖x‖²/2) (cos ωᵀx, sin ωᵀx), as it stands."""
    angles = x @ rows.mT
    waves = torch.cat([angles.cos(), angles.sin()], -1)
    return (x.square().sum(-1, keepdim=True) / 2).exp() * waves / math.sqrt(rows.shape[-2])


KINDS = [PositiveFeatures, HyperbolicFeatures, TrigonometricFeatures]
FUNCTIONS = [positive_features, hyperbolic_features, trigonometric_features]


def _pair(width=8):
    """x and y of one length, with ‖x + y‖² = 0.4105 and xᵀy = -0.1092."""
    square = (0.4105 + 2 * 0.1092) / 2
    cosine = -0.1092 / square
    x, y = torch.zeros(2, width, dtype=torch.float64)
    x[0] = y[0] = square**0.5
    y[1], y[0] = y[0] * math.sqrt(1 - cosine**2), y[0] * cosine
    return x, y


def _closed_forms(x, y, m):
    """Mean squared errors of m independent rows (Choromanski et al. 2021, lemma 2)."""
    total, apart = ((x + y) ** 2).sum().item(), ((x - y) ** 2).sum().item()
    kernel = math.exp(x @ y)
    positive = math.exp(total) * kernel**2 * (1 - math.exp(-total)) / m
    hyperbolic = (1 - math.exp(-total)) / 2 * positive
    trigonometric = math.exp(total) * kernel**-2 * (1 - math.exp(-apart)) ** 2 / (2 * m)
    return positive, hyperbolic, trigonometric


def _squared_errors(features, rows, x, y):
    """Of one estimate for each matrix of `rows`, (trial, row, width)."""
    estimates = (features(x, rows) * features(y, rows)).sum(-1)
    return (estimates - (x @ y).exp()) ** 2


@pytest.mark.parametrize("number", range(3), ids=["positive", "hyperbolic", "trigonometric"])
def test_errors_of_independent_rows_are_those_of_the_closed_forms(number):
    x, y = _pair()
    expected = _closed_forms(x, y, 16)
    assert [round(error, 5) for error in expected] == [0.0255, 0.00429, 0.01914]
    generator = torch.Generator().manual_seed(0)
    trials = 20_000
    rows = independent_rows(trials * 16, 8, generator=generator).unflatten(0, (trials, 16))
    errors = _squared_errors(FUNCTIONS[number], rows, x, y)
    standard_error = (errors.std() / trials**0.5).item()
    assert abs(errors.mean().item() - expected[number]) < 3 * standard_error
    assert standard_error < 0.03 * expected[number]  # the comparison means something


def test_orthogonal_rows_estimate_better_than_independent_ones():
    x, y = _pair()
    trials = 20_000
    generator = torch.Generator().manual_seed(0)
    rows = orthogonal_rows(trials * 8, 8, generator=generator).unflatten(0, (trials, 8))
    errors = _squared_errors(positive_features, rows, x, y)
    independent, _, _ = _closed_forms(x, y, 8)
    assert round(independent, 4) == 0.051
    assert errors.mean() + 3 * errors.std() / trials**0.5 < independent


def test_orthogonal_rows_are_haar_along_the_ones():
    """E exp(ωᵀz - ‖z‖²/2) is 1 in every direction; QR without its sign correction gives 0.81."""
    n_blocks, width = 20_000, 8
    z = torch.full((width,), width**-0.5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    rows = orthogonal_rows(n_blocks * width, width, generator=generator)
    means = (rows @ z - 0.5).exp().unflatten(0, (n_blocks, width)).mean(1)  # blocks are independent
    standard_error = means.std().item() / n_blocks**0.5
    assert abs(means.mean().item() - 1) < 3 * standard_error < 0.03

    blocks = torch.randn(n_blocks, width, width, generator=generator, dtype=torch.float64)
    plain = torch.linalg.qr(blocks).Q.flatten(0, 1) * rows.norm(dim=-1, keepdim=True)
    assert abs((plain @ z - 0.5).exp().mean().item() - 0.8145) < 0.01  # the check can fail


def test_rows_are_orthogonal_in_blocks_with_lengths_of_gaussian_vectors():
    rows = orthogonal_rows(5000 * 4 + 3, 4, generator=torch.Generator().manual_seed(0))
    assert rows.shape == (20_003, 4)
    products = rows[:20_000].unflatten(0, (5000, 4)) @ rows[:20_000].unflatten(0, (5000, 4)).mT
    assert (products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))).abs().max() < 1e-12
    squares = rows.square().sum(-1)  # χ² with 4 degrees of freedom: mean 4, variance 8
    assert abs(squares.mean() - 4) < 3 * (8 / 20_003) ** 0.5
    assert abs(squares.var() - 8) < 0.5


@pytest.mark.parametrize("number", range(3), ids=["positive", "hyperbolic", "trigonometric"])
def test_stabilised_features_give_the_weights_of_the_plain_ones(number):
    """Width 256, where lengths of rows alone would overflow float32's exponential."""
    torch.manual_seed(0)
    for width, scale in ((8, 1.0), (256, 0.5)):
        features = KINDS[number](width, 40, seed=3).double()
        query, key = torch.randn(2, 1, 2, 7, width, dtype=torch.float64) * scale
        scores = features(query, "query") @ features(key, "key").mT
        plain = [FUNCTIONS[number](x * width**-0.25, features.rows) for x in (query, key)]
        expected = plain[0] @ plain[1].mT
        torch.testing.assert_close(
            scores / scores.sum(-1, keepdim=True), expected / expected.sum(-1, keepdim=True)
        )


@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("size", [0.0, 1.0, 30.0, 1e4])
def test_features_are_finite_at_any_size(build, size):
    features = build(256, 300, seed=0)
    x = (features.rows[None, None] * size).requires_grad_()  # a key at a row: the largest exponent
    for side in ("query", "key"):
        mapped = features(x, side)
        assert mapped.isfinite().all() and mapped.abs().sum(-1).min() > 0
        if features.nonnegative:
            assert mapped.min() > 0
        (gradient,) = torch.autograd.grad(mapped.sum(), x)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("build", KINDS)
@pytest.mark.parametrize("side", ["query", "key"])
def test_each_position_is_mapped_by_itself(build, side):
    features = build(8, 12).double()
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    whole = features(x, side)
    torch.testing.assert_close(features(x[:, :, 2:3], side), whole[:, :, 2:3])
    other = torch.cat([x[:, :, :3], x[:, :, 3:] * 1e4], 2)
    assert torch.equal(features(other, side)[:, :, :3], whole[:, :, :3])
    assert features(x[:, :, :0], side).shape == (2, 3, 0, whole.shape[-1])


@pytest.mark.parametrize("build", KINDS)
def test_half_precision_is_mapped_in_float32_under_autocast_too(build):
    features = build(8, 12, seed=0)
    x = torch.randn(1, 1, 4, 8).bfloat16()
    expected = features(x.float(), "key")
    assert torch.equal(features(x, "key"), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(features(x, "key"), expected)


def test_rows_are_drawn_again_in_training_alone():
    features = PositiveFeatures(4, 6, redraw_every=3, seed=0)
    first = features.rows.clone()
    for _ in range(2):
        features.advance()
    assert torch.equal(features.rows, first)
    features.advance()
    second = features.rows.clone()
    assert not torch.equal(second, first)
    features.eval()
    for _ in range(10):
        features.advance()
    assert torch.equal(features.rows, second) and features.passes == 3
    features.redraw()
    assert not torch.equal(features.rows, second)
    never = PositiveFeatures(4, 6, redraw_every=None, seed=0)
    never.advance()
    assert torch.equal(never.rows, first) and "redrawn never" in repr(never)


def test_a_checkpoint_goes_on_with_the_rows_that_would_have_come():
    straight = HyperbolicFeatures(4, 6, redraw_every=2, seed=5)
    for _ in range(3):
        straight.advance()
    resumed = HyperbolicFeatures(4, 6, redraw_every=2, seed=6)
    resumed.load_state_dict(straight.state_dict())
    assert torch.equal(resumed.rows, straight.rows)
    straight.advance()
    resumed.advance()
    assert torch.equal(resumed.rows, straight.rows)


def test_torchs_seed_governs_draws_and_two_maps_differ():
    torch.manual_seed(0)
    first, second = PositiveFeatures(4, 6), PositiveFeatures(4, 6)
    torch.manual_seed(0)
    again = PositiveFeatures(4, 6)
    assert torch.equal(first.rows, again.rows) and not torch.equal(first.rows, second.rows)


def test_a_draw_between_forward_and_backward_leaves_gradients_alone():
    features = PositiveFeatures(4, 6, redraw_every=1, seed=0)
    x = torch.randn(1, 1, 3, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(features(x, "key").sum(), x)
    total = features(x, "key").sum()
    features.advance()
    (gradient,) = torch.autograd.grad(total, x)
    assert torch.equal(gradient, expected)


@pytest.mark.parametrize("features", [PositiveFeatures, HyperbolicFeatures])
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_transform_goes_through(features, side):
    features, x = features(4, 6, seed=0).double().eval(), torch.randn(3, 1, 2, 5, 4).double()
    batched = torch.func.vmap(lambda row: features(row, side))(x)
    torch.testing.assert_close(batched, torch.stack([features(row, side) for row in x]))


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(RegardError, match="PositiveFeatures: n_rows=0, expected at least 1"):
        PositiveFeatures(4, 0)
    with pytest.raises(ShapeError, match="axis width has size 5, expected 4"):
        PositiveFeatures(4)(torch.randn(1, 1, 3, 5), "key")
    assert PositiveFeatures(64).n_rows == 267 and PositiveFeatures(1).n_rows == 1


@pytest.mark.compiled
def test_compiled_training_draws_as_plain_training_does():
    class Pass(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features = PositiveFeatures(4, 6, redraw_every=2, seed=0)

        def forward(self, x):
            self.features.advance()
            return self.features(x, "key")

    plain, compiled = Pass(), Pass()
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    x = torch.randn(1, 1, 3, 4)
    for _ in range(5):
        torch.testing.assert_close(run(x), plain(x))
        assert torch.equal(compiled.features.rows, plain.features.rows)
    assert compiled.features.passes == 5
