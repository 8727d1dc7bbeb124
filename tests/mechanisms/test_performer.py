"""The Performer: linear attention with random features."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from regard import masks
from regard.errors import StateError
from regard.mechanisms import (
    HyperbolicFeatures,
    LinearAttention,
    PositiveFeatures,
    SumNormalised,
    TrigonometricFeatures,
)

KINDS = [PositiveFeatures, HyperbolicFeatures, TrigonometricFeatures]


def _features(kind, x, rows):
    """φ of one vector (Choromanski et al. 2021, lemma 1), number by number."""
    x = [number / len(x) ** 0.25 for number in x]
    half = sum(number**2 for number in x) / 2
    angles = [sum(a * b for a, b in zip(x, row)) for row in rows]
    if kind is PositiveFeatures:
        return [math.exp(angle - half) for angle in angles]
    if kind is HyperbolicFeatures:
        return [math.exp(sign * angle - half) for sign in (1, -1) for angle in angles]
    return [math.exp(half) * wave(angle) for wave in (math.cos, math.sin) for angle in angles]


def _by_loop(attn, x, kind, causal):
    """Prefix sums of φ(k) vᵀ and φ(k), read by φ(q): one example, one head."""
    rows = attn.feature_map.rows.tolist()
    query, key, value = (
        (x @ linear.weight.T + linear.bias).tolist()
        for linear in (attn.to_query, attn.to_key, attn.to_value)
    )
    outputs = []
    for position, q in enumerate(query):
        last = position + 1 if causal else len(key)
        numerator, denominator = [0.0] * len(value[0]), 0.0
        for k, v in zip(key[:last], value[:last]):
            products = zip(_features(kind, q, rows), _features(kind, k, rows))
            weight = sum(a * b for a, b in products)
            denominator += weight
            numerator = [total + weight * number for total, number in zip(numerator, v)]
        outputs.append([number / denominator for number in numerator])
    return torch.tensor(outputs, dtype=x.dtype) @ attn.to_output.weight.T


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_it_is_the_papers_estimator(kind, causal):
    torch.manual_seed(0)
    attn = LinearAttention(6, 1, feature_map=kind(6, 32)).double().eval()
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    attended = attn(x, causal=causal, weights=True)
    torch.testing.assert_close(attended.output[0], _by_loop(attn, x[0], kind, causal))
    assert attn.kind == ("signed" if kind is TrigonometricFeatures else "distribution")
    mixed = attended.weights @ attended.recipe.value
    torch.testing.assert_close(attended.recipe.mixed(), mixed)
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(1, 1, 9).double())


@torch.no_grad()
def test_more_rows_come_nearer_to_softmax_attention():
    """The error falls as 1/√m: by 8 from 64 to 4096 rows, give or take a half over these seeds."""
    torch.manual_seed(0)
    x = torch.randn(4, 12, 16) / 2  # the variance grows with exp(‖x + y‖²)
    errors = {}
    for n_rows in (64, 4096):
        squares = []
        for seed in range(8):
            torch.manual_seed(1)
            features = PositiveFeatures(8, n_rows, seed=seed)
            attn = LinearAttention(16, 2, feature_map=features).eval()
            query, key, value = (
                linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
                for linear in (attn.to_query, attn.to_key, attn.to_value)
            )
            exact = scaled_dot_product_attention(query, key, value, is_causal=True)
            output = attn.to_output(exact.transpose(1, 2).flatten(2))
            squares.append((attn(x, causal=True).output - output).square().mean())
        errors[n_rows] = torch.stack(squares).mean().sqrt()
    assert 4 < errors[64] / errors[4096] < 16
    assert errors[4096] < 0.05 * output.std()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_future_changes_nothing_and_steps_are_one_pass(kind):
    torch.manual_seed(0)
    attn = LinearAttention(8, 2, feature_map=kind(4, 40)).eval()
    x = torch.randn(2, 70, 8)
    whole = attn(x, causal=True).output
    changed = torch.cat([x[:, :40], x[:, 40:] * 1e4], 1)
    assert torch.equal(attn(changed, causal=True).output[:, :40], whole[:, :40])
    state, steps = True, []
    for position in range(70):
        attended = attn(x[:, position : position + 1], causal=True, state=state)
        state = attended.state
        steps.append(attended.output)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_padding_is_deletion():
    attn = LinearAttention(8, 2, feature_map=PositiveFeatures(4)).double().eval()
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    keep = torch.tensor([[True] * 6 + [False] * 3])
    padded = attn(x, mask=masks.padding(keep)).output[:, :6]
    torch.testing.assert_close(padded, attn(x[:, :6]).output)


def test_training_draws_new_rows_and_eval_none():
    attn = LinearAttention(8, 2, feature_map=SumNormalised(PositiveFeatures(4, 6, redraw_every=2)))
    features, x = attn.feature_map.feature_map, torch.randn(1, 5, 8)
    first = features.rows.clone()
    attn(x)
    assert torch.equal(features.rows, first)
    state = attn(x, causal=True, state=True).state
    second = features.rows.clone()
    assert not torch.equal(second, first)
    for _ in range(4):
        state = attn(x, causal=True, state=state).state  # its memory was written in these rows
    assert torch.equal(features.rows, second) and features.passes == 2
    attn.eval()
    for _ in range(4):
        attn(x)
    assert torch.equal(features.rows, second)


def test_a_state_from_before_a_draw_is_refused():
    features = PositiveFeatures(4, 6, redraw_every=3)
    attn, x = LinearAttention(8, 2, feature_map=SumNormalised(features)), torch.randn(2, 5, 8)
    begun, state = attn.begin(x), attn(x, causal=True, state=True).state
    state = attn(x, causal=True, state=state).state
    attn(x)
    attn(x, causal=True, state=state)  # the rows are still the same
    attn(x)
    message = r"state was written in draw \[0\] of the random features, which are now in draw 1"
    for old in (state, begun):
        with pytest.raises(StateError, match=message):
            attn(x, causal=True, state=old)
    fixed = attn.fix(x)
    features.redraw()
    with pytest.raises(StateError, match=r"in draw \[1\] .* now in draw 2"):
        attn(x, state=fixed)
    assert LinearAttention(8, 2).begin(x).draw is None


def test_checkpointing_computes_a_pass_with_the_rows_it_had():
    torch.manual_seed(0)
    attn = LinearAttention(8, 2, feature_map=PositiveFeatures(4, 6, redraw_every=1, seed=0))
    x = torch.randn(1, 5, 8)
    features = attn.feature_map
    attn(x).output.square().sum().backward()
    expected = [parameter.grad.clone() for parameter in attn.parameters()]
    rows = features.rows.clone()
    attn.zero_grad()
    features.passes.zero_()
    checkpoint(lambda x: attn(x).output, x, use_reentrant=False).square().sum().backward()
    assert torch.equal(features.rows, rows) and features.passes == 1
    for parameter, gradient in zip(attn.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient)
