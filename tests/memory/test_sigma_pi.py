"""Sigma-pi units: exclusive or, loops over conjuncts, gradients where factors are 0."""

import math
import re

import pytest
import torch

from regard.errors import RegardError
from regard.mechanisms import IdentityFeatures, LinearAttention
from regard.memory import SigmaPi, all_conjuncts

CONJUNCTS = [(), (0,), (2,), (0, 1), (1, 2, 3), (3, 3)]


def by_loop(unit, x):
    """Rumelhart et al. 1986: the weighted sum over conjuncts of the product of their inputs."""
    return torch.stack(
        [
            torch.stack(
                [
                    sum(w * math.prod(row[i] for i in k) for w, k in zip(weights, unit.conjuncts))
                    for weights in unit.weight
                ]
            )
            for row in x
        ]
    )


def test_exclusive_or_by_one_unit():
    unit = SigmaPi(2, 1, conjuncts=[(0,), (1,), (0, 1)])
    unit.weight.data = torch.tensor([[1.0, 1.0, -2.0]])
    table = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert unit(table)[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0]


@torch.no_grad()
def test_it_is_the_sum_of_products():
    unit = SigmaPi(4, 3, conjuncts=CONJUNCTS).double()
    x = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(unit(x), by_loop(unit, x))
    squashed = SigmaPi(4, 3, conjuncts=CONJUNCTS, activation=torch.sigmoid).double()
    squashed.load_state_dict(unit.state_dict())
    torch.testing.assert_close(squashed(x.reshape(7, 1, 4))[:, 0], by_loop(unit, x).sigmoid())


def test_gradients_are_products_of_the_other_factors():
    """Zeros and negative numbers among the factors, and products that underflow."""
    unit = SigmaPi(3, 1, conjuncts=[(0, 1, 2)])
    unit.weight.data.fill_(1.0)
    for factors, gradient in (
        ([0.0, -2.0, 3.0], [-6.0, 0.0, 0.0]),
        ([0.0, 0.0, 3.0], [0.0, 0.0, 0.0]),
        ([-1.0, -2.0, -3.0], [6.0, 3.0, 2.0]),
        ([1e-30, 1e-30, 2.0], [2e-30, 2e-30, 0.0]),
    ):
        x = torch.tensor(factors, requires_grad=True)
        unit(x).sum().backward()
        assert x.grad.tolist() == pytest.approx(gradient, rel=1e-6, abs=0.0)
    smooth = SigmaPi(4, 2, conjuncts=CONJUNCTS).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    x[0, :2] = 0.0
    assert torch.autograd.gradcheck(smooth, x.requires_grad_())


def test_a_feature_outside_of_every_conjunct_is_not_read():
    unit, x = SigmaPi(3, 1, conjuncts=[(0, 2)]), torch.ones(2, 3)
    x[:, 1] = torch.nan
    assert unit(x).isfinite().all()


def test_all_conjuncts():
    assert all_conjuncts(3, 2) == ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))
    assert all_conjuncts(2, 9) == ((), (0,), (1,), (0, 1))
    assert SigmaPi(3).conjuncts == all_conjuncts(3, 2)
    assert "7 conjuncts of order up to 2" in str(SigmaPi(3))


@torch.no_grad()
def test_linear_attention_is_a_sigma_pi_unit_of_order_three():
    """Σ_s (q · k_s) v_s is a sum of products q_i k_si v_sj, each with weight 1."""
    keys, width = 4, 2
    attn = LinearAttention(width, 1, bias=False, feature_map=IdentityFeatures(), normalised=False)
    for projection in (attn.to_query, attn.to_key, attn.to_value, attn.to_output):
        projection.weight.copy_(torch.eye(width))
    query, key, value = torch.randn(1, width), torch.randn(keys, width), torch.randn(keys, width)
    numbers = torch.cat([query.flatten(), key.flatten(), value.flatten()])
    first_key, first_value = width, width + keys * width
    conjuncts = [
        (i, first_key + s * width + i, first_value + s * width + j)
        for j in range(width)
        for s in range(keys)
        for i in range(width)
    ]
    unit = SigmaPi(len(numbers), width, conjuncts=conjuncts)
    unit.weight.copy_(torch.eye(width).repeat_interleave(keys * width, dim=1))
    attended = attn(query[None], key[None], value[None])
    torch.testing.assert_close(unit(numbers), attended.output[0, 0])


@pytest.mark.parametrize(
    ("conjuncts", "text"),
    [
        ([], "conjuncts is empty, expected index sets, as [(0,), (0, 1)]"),
        ([(0, 3)], "conjunct (0, 3) has index 3, expected 0 to 2, the features"),
        ([(-1,)], "conjunct (-1,) has index -1, expected 0 to 2"),
        ([0, 1], "conjunct 0, expected a tuple of indices, as (0, 1)"),
        (["ab"], "conjunct 'ab', expected a tuple of indices"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_conjuncts_are_named(conjuncts, text):
    with pytest.raises(RegardError, match=re.escape(f"SigmaPi: {text}")):
        SigmaPi(3, conjuncts=conjuncts)


def test_wrong_sizes_are_named():
    with pytest.raises(RegardError, match="SigmaPi: width=0, expected a whole number from 1 on"):
        SigmaPi(0)
