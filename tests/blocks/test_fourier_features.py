"""Fourier features of positions: their equation in loops, any axes, any size, half precision."""

import math

import pytest
import torch

from regard.blocks.sets import FourierFeatures
from regard.errors import DtypeError, ShapeError


def reading(position, resolution, n_bands):
    """[p; sin(π f_k p); cos(π f_k p)] of one position, a list of coordinates."""
    angles = []
    for p, size in zip(position, resolution):
        for k in range(n_bands):
            share = k / (n_bands - 1) if n_bands > 1 else 0.0
            angles.append(math.pi * (1 + share * (size / 2 - 1)) * p)
    return [*position, *map(math.sin, angles), *map(math.cos, angles)]


@pytest.mark.parametrize("resolution", [(6,), (6, 4), (2, 6, 4)], ids=["audio", "image", "video"])
def test_a_grid_is_its_equation_in_loops(resolution):
    features = FourierFeatures(resolution, 3)
    x = torch.randn(2, *resolution, 5, dtype=torch.float64)
    got = features(x)
    places = [[]]
    for size in resolution:  # the last axis runs fastest, as in x
        places = [[*place, -1 + 2 * i / (size - 1)] for place in places for i in range(size)]
    want = torch.tensor([reading(place, resolution, 3) for place in places], dtype=torch.float64)
    torch.testing.assert_close(got[..., :5], x.flatten(1, -2), rtol=0, atol=0)
    torch.testing.assert_close(got[..., 5:], want.expand(2, -1, -1), rtol=1e-12, atol=1e-12)
    assert got.shape[-1] == 5 + features.width == 5 + len(resolution) * (2 * 3 + 1)


def test_the_paper_has_261_channels():
    assert FourierFeatures((224, 224), 64)(torch.zeros(1, 2, 2, 3)).shape[-1] == 261


def test_positions_of_ones_own():
    features = FourierFeatures((8, 8), 2)
    x, positions = torch.randn(2, 5, 3), torch.rand(2, 5, 2) * 2 - 1
    got = features(x, positions)
    want = torch.tensor([[reading(p, (8, 8), 2) for p in one] for one in positions.tolist()])
    torch.testing.assert_close(got[..., 3:], want, rtol=1e-5, atol=1e-5)
    same = features(x, positions[:1])  # one for all examples
    torch.testing.assert_close(same[0], got[0], rtol=0, atol=0)


def test_half_precision_keeps_the_phase():
    """Computed in bfloat16, the highest frequency of 224 samples would be off by a radian."""
    half = FourierFeatures((224,), 64).bfloat16()(torch.zeros(1, 224, 0, dtype=torch.bfloat16))
    want = torch.tensor([reading([-1 + 2 * i / 223], (224,), 64) for i in range(224)])
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half[0].float(), want, rtol=0, atol=4e-3)


def test_an_empty_grid_and_a_single_sample():
    features = FourierFeatures((4, 4), 2)
    assert features(torch.zeros(2, 0, 4, 3)).shape == (2, 0, 13)
    assert features(torch.zeros(2, 1, 1, 3)).shape == (2, 1, 13)


def test_errors_say_what_was_expected(without_shape_checks):
    features = FourierFeatures((4, 4), 2)
    with pytest.raises(ShapeError, match=r"x has 3 axes \(2, 16, 3\), expected 4.*positions="):
        features(torch.zeros(2, 16, 3))
    with pytest.raises(ShapeError, match=r"positions \(2, 16, 3\), expected .*position, 2\)"):
        features(torch.zeros(2, 16, 3), torch.zeros(2, 16, 3))
    with pytest.raises(DtypeError, match=r"x is torch.int64, expected floating"):
        features(torch.zeros(2, 4, 4, 3, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"resolution=\(4,\), n_bands=0, expected at least"):
        FourierFeatures((4,), 0)
