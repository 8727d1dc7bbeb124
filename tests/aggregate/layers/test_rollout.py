"""Rollout: worked values, a dense reading, invariances, and captured models."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.errors import RegardError, UnavailableError
from regard.recipe import Given

EYE = torch.eye
LOW = torch.tensor([[0.8, 0.2], [0.4, 0.6]], dtype=torch.float64)[None, None]
HIGH = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)[None, None]


def made(seed: int, layers: int = 4, batch: int = 2, heads: int = 3, length: int = 9):
    torch.manual_seed(seed)
    return [
        torch.randn(batch, heads, length, length, dtype=torch.float64).softmax(-1)
        for _ in range(layers)
    ]


def dense(layers, residual=0.5, fused=lambda weights: weights.mean(1)):
    """R_ij by sums over the paths, one entry at a time."""
    batch, _, length, _ = layers[0].shape
    whole = EYE(length, dtype=layers[0].dtype).expand(batch, -1, -1).clone()
    for weights in layers:
        one = fused(weights)
        one = one / one.sum(-1, keepdim=True)
        following = torch.zeros_like(whole)
        for i in range(length):
            for k in range(length):
                share = (1 - residual) * one[:, i, k] + (residual if i == k else 0.0)
                following[:, i] += share[:, None] * whole[:, k]
        whole = following
    return whole


def test_the_worked_example():
    truth = torch.tensor([[0.725, 0.275], [0.235, 0.765]], dtype=torch.float64)
    torch.testing.assert_close(regard.rollout([LOW, HIGH])[0], truth)


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("token", [None, 3, -1, [0, 2, -1], list(range(9))])
def test_against_sums_over_paths(token, residual):
    layers = made(0)
    truth = dense(layers, residual)
    truth = truth if token is None else truth[:, token]
    found = regard.rollout(layers, token, residual=residual)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("heads", "fused"),
    [
        ("max", lambda weights: weights.amax(1)),
        ("min", lambda weights: weights.amin(1)),
        (1, lambda weights: weights[:, 1]),
        (torch.tensor([2.0, 0.0, 1.0]), lambda weights: 2 * weights[:, 0] + weights[:, 2]),
    ],
)
@pytest.mark.parametrize("token", [None, 4])
def test_ways_to_join_heads(heads, fused, token):
    layers = made(1)
    truth = dense(layers, fused=fused)
    truth = truth if token is None else truth[:, token]
    torch.testing.assert_close(regard.rollout(layers, token, heads=heads), truth)


def test_a_weighting_for_each_layer():
    layers = made(2, layers=2)
    share = torch.tensor([[1.0, 0, 0], [0, 0, 1.0]])
    truth = dense([layers[0][:, :1], layers[1][:, 2:]])
    torch.testing.assert_close(regard.rollout(layers, heads=share), truth)
    torch.testing.assert_close(regard.rollout(layers, 2, heads=share), truth[:, 2])


def test_discarding_the_smallest_weights():
    layers = made(3, layers=2, length=5)
    cut = []
    for weights in layers:
        mean = weights.mean(1)
        one = mean.clone()
        for row in one.flatten(0, 1):
            for place in row.sort().indices[:2].tolist():  # half of five
                row[place] = 0.0
        one[:, :, 0] = mean[:, :, 0]
        cut.append(one[:, None])
    truth = dense(cut)
    torch.testing.assert_close(regard.rollout(layers, discard=0.5), truth)
    torch.testing.assert_close(regard.rollout(layers, 1, discard=0.5), truth[:, 1])


def test_padding_does_not_count_among_the_smallest():
    alone = made(10, layers=2, batch=1, heads=1, length=4)
    padded = []
    for weights in alone:
        more = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
        more[..., :4, :4], more[..., 4:, :4] = weights, 0.25
        padded.append(more)
    found = regard.rollout(padded, 0, discard=0.5)
    torch.testing.assert_close(found[:, :4], regard.rollout(alone, 0, discard=0.5))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    layers=st.integers(1, 5),
    length=st.integers(1, 12),
    residual=st.floats(0.0, 0.99),
    heads=st.sampled_from(["mean", "max", 0]),
)
def test_rows_sum_to_one_and_heads_may_change_places(seed, layers, length, residual, heads):
    stack = made(seed, layers, 1, 3, length)
    found = regard.rollout(stack, residual=residual, heads=heads)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, length, dtype=torch.float64))
    if heads != 0:
        shuffled = [weights[:, [2, 0, 1]] for weights in stack]
        again = regard.rollout(shuffled, length - 1, residual=residual, heads=heads)
        torch.testing.assert_close(again, found[:, -1])


@pytest.mark.parametrize("token", [None, 0, 3])
def test_rows_that_sum_to_less_and_rows_of_nothing(token):
    """A sink takes a part of some rows; a padded query attends to nothing and stays itself."""
    layers = made(4, layers=3, length=6)
    for weights in layers:
        weights[:, :, 2] *= 0.4
        weights[:, :, 3] = 0.0
    recipes = [Given(weights, None, "partial") for weights in layers]
    filled = [weights.clone() for weights in layers]
    for weights in filled:
        weights[:, :, 3, 3] = 1.0
    truth = dense(filled)
    truth = truth if token is None else truth[:, token]
    torch.testing.assert_close(regard.rollout(recipes, token), truth)


class Layers(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0) for _ in range(3)
        )

    def forward(self, x, padding=None):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=padding, is_causal=self.causal)
        return x


@pytest.mark.parametrize("length", [6, 600])
@pytest.mark.parametrize("causal", [False, True])
def test_captured_layers(causal, length):
    torch.manual_seed(0)
    model = Layers(causal).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(2, length, 16))
    whole = EYE(length).expand(2, -1, -1)
    for weights in trace.attentions:
        whole = (0.5 * weights.mean(1) + 0.5 * EYE(length)) @ whole
    torch.testing.assert_close(regard.rollout(trace, -1), whole[:, -1], atol=1e-5, rtol=0)
    torch.testing.assert_close(regard.rollout(trace, [0, 3]), whole[:, [0, 3]], atol=1e-5, rtol=0)
    torch.testing.assert_close(regard.rollout(trace), whole, atol=1e-5, rtol=0)


def test_padding_receives_nothing():
    torch.manual_seed(0)
    model = Layers(False).train()
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    with regard.capture(model) as trace:
        model(torch.randn(2, 6, 16), padding)
    found = regard.rollout(trace, 0)
    assert found[1, 4:].abs().max() == 0
    torch.testing.assert_close(found.sum(-1), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype):
    layers = made(5)
    found = regard.rollout([weights.to(dtype) for weights in layers], 2)
    assert found.dtype == torch.float32
    close = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), dense(layers)[:, 2], atol=close, rtol=0)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"residual": 1.0}, RegardError, "residual=1.0"),
        ({"discard": -0.1}, RegardError, "discard=-0.1"),
        ({"heads": "concat"}, RegardError, "no single map"),
        ({"token": 9}, RegardError, "token=9"),
    ],
)
def test_what_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        regard.rollout(made(0), **options)


@pytest.mark.parametrize("token", [None, 1])
def test_signed_weights_are_no_shares(token):
    signed = [Given(torch.randn(1, 2, 3, 3), None, "signed")]
    with pytest.raises(UnavailableError, match="signed"):
        regard.rollout(signed, token)


def test_the_answer_is_outside_the_graph():
    layers = [weights.requires_grad_() for weights in made(6)]
    assert not regard.rollout(layers, 0).requires_grad


@pytest.mark.parametrize("weights", [[0.0, 0, 0], [1.0, -0.5, -0.5], [float("nan"), 1, 1]])
@pytest.mark.parametrize("token", [None, 1])
def test_a_weighting_that_has_no_whole(token, weights):
    with pytest.raises(RegardError, match="no positive sum"):
        regard.rollout(made(0), token, heads=torch.tensor(weights))


def test_a_weighting_of_other_layers():
    with pytest.raises(RegardError, match="2 layers, expected 4"):
        regard.rollout(made(0), heads=torch.ones(2, 3))


@pytest.mark.parametrize("token", [None, 2])
def test_autocast_changes_nothing(token):
    layers = [weights.float() for weights in made(7)]
    with torch.autocast("cpu", torch.bfloat16):
        found = regard.rollout(layers, token)
    torch.testing.assert_close(found, regard.rollout(layers, token), atol=0, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
def test_tokens_as_other_people_have_them():
    layers = made(8)
    truth = regard.rollout(layers, [1, 2])
    torch.testing.assert_close(regard.rollout(layers, range(1, 3)), truth)
    torch.testing.assert_close(regard.rollout(layers, torch.tensor([1, 2])), truth)
    torch.testing.assert_close(regard.rollout(layers, torch.tensor(1)), truth[:, 0])
    with pytest.raises(RegardError, match="token=True"):
        regard.rollout(layers, True)


def test_cross_attention_has_no_rollout_though_the_lengths_are_equal():
    model = nn.Transformer(8, 2, 1, 2, 16, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(1, 5, 8), torch.randn(1, 5, 8))
    with pytest.raises(RegardError, match=r"5 queries × 5 keys .*cross-attention reads another"):
        regard.rollout(trace, 0, part="cross")
    assert regard.rollout(trace, 0, part="decoder").shape == (1, 5)


def test_layers_of_two_precisions():
    layers = made(9)
    mixed = [layers[0].float(), *layers[1:]]
    for token in (None, 1):
        found, truth = regard.rollout(mixed, token), regard.rollout(layers, token)
        torch.testing.assert_close(found.double(), truth, atol=1e-6, rtol=0)
