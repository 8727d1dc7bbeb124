"""Weights that depend on positions alone, against a loop over pairs."""

import pytest
import torch

from regard import masks
from regard.recipe import Identity, Uniform
from regard.types import whole

KEEP = torch.tensor([[True, True, False, True, True], [True, False, True, True, False]])
MASKS = {
    "none": None,
    "causal": masks.causal(),
    "padding": masks.padding(KEEP),
    "both": masks.causal() & masks.padding(KEEP),
    "window": masks.window(1, 0),
    "padded window": masks.window(1, 1) & masks.padding(KEEP),
    "heads": masks.pairs((torch.arange(2 * 2 * 3 * 5) % 7 > 1).view(2, 2, 3, 5)),
    "nothing": masks.pairs(torch.zeros(1, 1, 3, 5, dtype=torch.bool)),
}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
every_recipe = pytest.mark.parametrize("kind", [Identity, Uniform])


def recipe(kind, mask=None, queries=3, dtype=torch.float64):
    torch.manual_seed(0)
    query, key = torch.full((2, 2, queries, 3), torch.nan), torch.full((2, 1, 5, 3), torch.nan)
    value = torch.randn(2, 1, 5, 4)
    return kind(query.to(dtype), key.to(dtype), value.to(dtype), mask=mask)


def by_hand(kind, mask, queries=3):
    """(batch, head, query, key), pair by pair."""
    weights = torch.zeros(2, 2, queries, 5, dtype=torch.float64)
    allowed = torch.ones(2, 2, queries, 5, dtype=torch.bool)
    if mask is not None:
        allowed = mask.dense(queries, 5).expand(2, 2, -1, -1)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        if allowed[b, h, i, j]:
            own = j == i + 5 - queries  # the last query stands at the last key
            count = int(allowed[b, h, i].sum())
            weights[b, h, i, j] = float(own) if kind is Identity else 1 / count
    return weights


@every_mask
@every_recipe
def test_weights_and_mixed_values_are_those_of_a_loop(kind, mask):
    attention, truth = recipe(kind, mask), by_hand(kind, mask)
    torch.testing.assert_close(attention.weights(), truth)
    torch.testing.assert_close(attention.weights(slice(1, 3), slice(2, 4)), truth[:, :, 1:3, 2:4])
    torch.testing.assert_close(attention.mixed(), truth @ attention.value)
    torch.testing.assert_close(attention.at(1, 0).weights(), truth[1:, :1])
    torch.testing.assert_close(attention.at(1, 1).mixed(), (truth @ attention.value)[1:, 1:])
    torch.testing.assert_close(attention.of_heads([1]).mixed(), (truth @ attention.value)[:, 1:])
    logs = attention.log_weights(whole(3, 5))
    torch.testing.assert_close(logs.exp(), truth)


@every_recipe
@pytest.mark.parametrize("queries", [0, 1, 5, 7])
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_queries(kind, queries, causal):
    mask = masks.causal() if causal else None
    attention, truth = recipe(kind, mask, queries), by_hand(kind, mask, queries)
    torch.testing.assert_close(attention.weights(), truth)
    torch.testing.assert_close(attention.mixed(), truth @ attention.value)


@every_recipe
def test_padding_may_hold_nan_and_gradients_reach_the_values(kind):
    attention = recipe(kind, masks.causal() & masks.padding(KEEP), 5)
    dirty = attention.value.masked_fill(~KEEP[:, None, :, None], torch.nan).requires_grad_()
    output = kind(attention.query, attention.key, dirty, attention.mask).mixed()
    torch.testing.assert_close(output, attention.mixed())
    output.square().sum().backward()
    assert dirty.grad.isfinite().all() and dirty.grad.any()


def test_a_causal_mean_never_makes_the_matrix():
    length = 60_000  # the matrix would have 14 GB
    value = torch.ones(1, 1, length, 2)
    for kind in (Identity, Uniform):
        output = kind(value, value, value, masks.causal()).mixed()
        torch.testing.assert_close(output, value)


@every_recipe
def test_half_precision_is_computed_in_float32(kind):
    attention = recipe(kind, masks.causal(), dtype=torch.bfloat16)
    assert attention.weights().dtype == torch.float32 and attention.mixed().dtype == torch.bfloat16
    torch.testing.assert_close(
        attention.mixed().double(), recipe(kind, masks.causal()).mixed(), atol=2e-2, rtol=0
    )
