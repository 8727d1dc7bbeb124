"""Gates and bilinear maps: loops, torch's own, and attention as a sum of gatings."""

import re

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError, ShapeError, UnavailableError
from regard.memory import Bilinear, Gating, LowRankBilinear


@torch.no_grad()
def test_a_gate_multiplies():
    unit = Gating(3, 2)
    x, control = torch.randn(2, 4, 3), torch.randn(2, 4, 2)
    attended = unit(x, control, weights=True)
    linear = unit.network[0]
    for example in range(2):
        for index in range(4):
            for feature in range(3):
                score = linear.weight[feature] @ control[example, index] + linear.bias[feature]
                gate = 1 / (1 + (-score).exp())
                torch.testing.assert_close(attended.weights[example, 0, index, feature], gate)
                torch.testing.assert_close(
                    attended.output[example, index, feature], x[example, index, feature] * gate
                )
    assert attended.recipe.kind == "gate"
    assert torch.equal(attended.recipe.weights(), attended.weights)


@torch.no_grad()
def test_one_control_and_one_factor_serve_all():
    unit = Gating(3, 2, network=nn.Linear(2, 1), kind="signed")
    x, control = torch.randn(2, 4, 3), torch.randn(1, 1, 2)
    attended = unit(x, control, weights=True)
    factor = unit.network(control).item()
    assert attended.weights.shape == (2, 1, 4, 3) and attended.recipe.kind == "signed"
    torch.testing.assert_close(attended.output, x * factor)


@torch.no_grad()
def test_attention_is_a_sum_of_gatings():
    """Each value is gated by its weight, a number for all of its features, and they are added."""
    query, key, value = (torch.randn(1, 1, length, 4) for length in (3, 5, 5))
    attended = regard.attend(query, key, value, weights=True)
    gating = Gating(4, 1, network=nn.Identity(), kind="gate")
    total = torch.zeros(1, 3, 4)
    for index in range(5):
        weight = attended.weights[:, 0, :, index : index + 1]  # (batch, query, 1), the control
        total += gating(value[:, 0, index : index + 1].expand(1, 3, 4), weight).output
    torch.testing.assert_close(total, attended.output[:, 0])


@torch.no_grad()
def test_scores_are_a_bilinear_map():
    """softmax over s of qᵀ W k_s: W the tensor of one output."""
    unit = Bilinear(4, 4, 1, bias=False)
    unit.weight.copy_(torch.eye(4)[None] / 2)  # 1/√4, the scale of attention
    query, key = torch.randn(3, 4), torch.randn(5, 4)
    weights = unit(query[:, None], key)[..., 0].softmax(-1)
    expected = regard.attend(query[None, None], key[None, None], key[None, None], weights=True)
    torch.testing.assert_close(weights, expected.weights[0, 0])


def test_a_gate_mixes_nothing():
    attended = Gating(3)(torch.randn(1, 2, 3), weights=True)
    with pytest.raises(UnavailableError, match="made without values"):
        attended.recipe.mixed()
    with pytest.raises(UnavailableError, match="gate weights have no logarithm"):
        regard.reduce(attended.recipe, [regard.Entropy()])


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_bilinear_is_torch_s(bias):
    ours, theirs = Bilinear(5, 3, 2, bias=bias), nn.Bilinear(5, 3, 2, bias=bias)
    ours.load_state_dict(theirs.state_dict())
    x, control = torch.randn(4, 6, 5), torch.randn(4, 6, 3)
    torch.testing.assert_close(ours(x, control), theirs(x, control))
    torch.testing.assert_close(
        ours(x, control[:1, :1]), theirs(x, control[:1, :1].expand(4, 6, 3).contiguous())
    )


@torch.no_grad()
def test_low_rank_is_a_tensor_of_that_rank():
    unit = LowRankBilinear(5, 3, 2, rank=4).double()
    full = Bilinear(5, 3, 2).double()
    full.weight.copy_(unit.full())
    full.bias.copy_(unit.to_output.bias)
    x, control = torch.randn(6, 5).double(), torch.randn(6, 3).double()
    torch.testing.assert_close(unit(x, control), full(x, control))
    loop = torch.zeros(2, 5, 3).double()
    for rank in range(4):
        outer = torch.outer(unit.to_factors.weight[rank], unit.to_gates.weight[rank])
        for output in range(2):
            loop[output] += unit.to_output.weight[output, rank] * outer
    torch.testing.assert_close(unit.full(), loop)


@torch.no_grad()
@pytest.mark.parametrize("unit", [Bilinear(5, 3, 2), LowRankBilinear(5, 3, 2, rank=4)])
def test_the_control_makes_a_matrix(unit):
    x, control = torch.randn(6, 5), torch.randn(6, 3)
    bias = unit.bias if isinstance(unit, Bilinear) else unit.to_output.bias
    matrix = unit.matrix(control)
    assert matrix.shape == (6, 2, 5)
    torch.testing.assert_close((matrix @ x[..., None])[..., 0] + bias, unit(x, control))


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_input_is_named():
    x = torch.randn(2, 4, 3)
    for control, text in (
        (torch.randn(2, 3, 2), "Gating: control: axis position has size 3, expected 4 or 1"),
        (torch.randn(3, 4, 2), "Gating: control: axis batch has size 3, expected 2 or 1"),
        (torch.randn(2, 4, 5), "Gating: control: axis width has size 5, expected 2"),
        (torch.randn(4, 2), "Gating: control has 2 axes (4, 2), expected 3: (batch, position,"),
    ):
        with pytest.raises(ShapeError, match=re.escape(text)):
            Gating(3, 2)(x, control)
    with pytest.raises(ShapeError, match=r"network gave \(2, 4, 7\) .*expected 3 features, or 1"):
        Gating(3, network=nn.Linear(3, 7))(x)
    with pytest.raises(RegardError, match="kind='partial', expected 'gate' or 'signed'"):
        Gating(3, kind="partial")
    with pytest.raises(ShapeError, match="Bilinear: control: axis width has size 4, expected 3"):
        Bilinear(3, 3)(x, torch.randn(2, 4, 4))
    for unit in (Bilinear(3, 2), LowRankBilinear(3, 2, rank=4)):
        text = (
            f"{type(unit).__name__}: x has leading axes (2, 4), control (2, 5): axis -2 has sizes "
            "4 and 5, expected equal ones, or 1"
        )
        with pytest.raises(ShapeError, match=re.escape(text)):
            unit(x, torch.randn(2, 5, 2))
        with pytest.raises(ShapeError, match=re.escape("axis -3 has sizes 2 and 6")):
            unit(x, torch.randn(7, 6, 1, 2))
        assert unit(x, torch.randn(7, 1, 4, 2)).shape == (7, 2, 4, 1)
    with pytest.raises(RegardError, match="LowRankBilinear: rank=0, expected a whole number"):
        LowRankBilinear(3, 3, rank=0)
