"""Feature maps of linear attention."""

import pytest
import torch

from regard.errors import RegardError
from regard.mechanisms import DPFP, EluPlusOne, IdentityFeatures, SumNormalised, UnitNormalised

MAPS = [
    IdentityFeatures(),
    EluPlusOne(),
    SumNormalised(EluPlusOne()),
    UnitNormalised(),
    UnitNormalised(EluPlusOne()),
    DPFP(),
    SumNormalised(DPFP(3)),
]


@pytest.mark.parametrize("feature_map", MAPS, ids=repr)
@pytest.mark.parametrize("side", ["query", "key"])
def test_each_position_is_mapped_by_itself(feature_map, side):
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    whole = feature_map(x, side)
    assert torch.equal(whole[:, :, 2:3], feature_map(x[:, :, 2:3].clone(), side))
    assert feature_map(x[:, :, :0], side).shape == (2, 3, 0, whole.shape[-1])
    if feature_map.nonnegative:
        assert (whole >= 0).all()


def test_values_by_hand():
    x = torch.tensor([[[[-1.0, 0.0, 2.0]]]])
    features = torch.tensor([[[[2.718281828**-1, 1.0, 3.0]]]])
    torch.testing.assert_close(EluPlusOne()(x, "key"), features)
    torch.testing.assert_close(
        SumNormalised(EluPlusOne())(x, "key"), features / (2.718281828**-1 + 4.0)
    )
    torch.testing.assert_close(UnitNormalised()(x, "query"), x / 5**0.5)


def test_zeros_stay_zeros_with_finite_gradients():
    class Relu(EluPlusOne):
        def forward(self, x, side):
            return x.relu()

    for feature_map in (SumNormalised(Relu()), UnitNormalised(Relu())):
        x = torch.full((1, 1, 2, 3), -1.0, requires_grad=True)
        features = feature_map(x, "key")
        assert not features.any()
        features.sum().backward()
        assert x.grad.isfinite().all()


def test_a_sum_of_signed_features_is_refused():
    with pytest.raises(RegardError, match="IdentityFeatures may give negative features"):
        SumNormalised(IdentityFeatures())


def test_dpfp_by_a_loop():
    x = torch.randn(2, 1, 3, 4, dtype=torch.float64)
    features = DPFP(3)(x, "query")
    assert features.shape == (2, 1, 3, 2 * 4 * 3)
    for index in [(0, 0, 0), (1, 0, 2)]:
        numbers = [max(float(v), 0.0) for v in x[index]] + [max(-float(v), 0.0) for v in x[index]]
        expected = [numbers[j] * numbers[(j - shift) % 8] for shift in (1, 2, 3) for j in range(8)]
        torch.testing.assert_close(features[index], torch.tensor(expected, dtype=x.dtype))
    with pytest.raises(RegardError, match="DPFP: n_shifts=0, expected at least 1"):
        DPFP(0)
