"""Heads to one map, against dense tensors."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError, ShapeError

torch.manual_seed(0)
WEIGHTS = torch.randn(2, 3, 7, 7, dtype=torch.float64).softmax(-1)
SHARE = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)


class Captured(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def captured(causal: bool, length: int) -> tuple[regard.Trace, torch.Tensor]:
    q, k, v = torch.randn(3, 2, 3, length, 8, dtype=torch.float64)
    model = Captured(causal)
    with regard.capture(model) as trace:
        model(q, k, v)
    scores = q @ k.mT / 8**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    return trace, scores.softmax(-1)


ANSWERS = {
    "mean": lambda weights: weights.mean(1),
    "max": lambda weights: weights.amax(1),
    "min": lambda weights: weights.amin(1),
    "concat": lambda weights: weights.permute(0, 2, 3, 1),
}


@pytest.mark.parametrize("heads", ANSWERS)
def test_words(heads):
    torch.testing.assert_close(regard.combine_heads(WEIGHTS, heads), ANSWERS[heads](WEIGHTS))


@pytest.mark.parametrize("length", [7, 700])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", ANSWERS)
def test_captured(heads, causal, length):
    trace, truth = captured(causal, length)
    found = regard.combine_heads(trace, heads)
    assert list(found) == trace.names()
    torch.testing.assert_close(found[trace.names()[0]], ANSWERS[heads](truth), atol=1e-10, rtol=0)
    torch.testing.assert_close(regard.combine_heads(trace[0], heads), found[trace.names()[0]])


def test_one_head_and_weightings():
    torch.testing.assert_close(regard.combine_heads(WEIGHTS, 1), WEIGHTS[:, 1])
    torch.testing.assert_close(regard.combine_heads(WEIGHTS, -1), WEIGHTS[:, 2])
    truth = (WEIGHTS * SHARE[:, None, None]).sum(1)
    torch.testing.assert_close(regard.combine_heads(WEIGHTS, SHARE), truth)
    torch.testing.assert_close(
        regard.combine_heads(WEIGHTS, torch.zeros(3)), torch.zeros_like(truth)
    )


def test_other_axes_give_the_same():
    twisted = WEIGHTS.permute(2, 1, 3, 0)
    torch.testing.assert_close(
        regard.combine_heads(twisted, "mean", axes="query head key batch"), WEIGHTS.mean(1)
    )


def test_signed_weights():
    signed = torch.randn(1, 4, 5, 5, dtype=torch.float64)
    for heads, answer in ANSWERS.items():
        torch.testing.assert_close(
            regard.combine_heads(signed, heads, kind="signed"), answer(signed)
        )


def test_the_smallest_of_heads_that_may_see_different_keys():
    """A block that one head may not see at all is 0 there."""
    length = 1200
    q, k = torch.randn(2, 1, 2, length, 8, dtype=torch.float64)
    allowed = torch.ones(1, 2, length, length, dtype=torch.bool)
    allowed[:, 1] = allowed[:, 1].tril()
    recipe = regard.attend(q, k, k, mask=allowed, reduce=[regard.QueryRows([0])]).recipe
    torch.testing.assert_close(regard.combine_heads(recipe, "min"), recipe.weights().amin(1))


@pytest.mark.parametrize(
    ("heads", "error", "said"),
    [
        ("median", RegardError, "expected 'mean', 'max', 'min', 'concat'"),
        (3, RegardError, "a head from 0 to 2"),
        (True, RegardError, "a head from 0 to 2"),
        (torch.ones(2), ShapeError, r"expected \(3,\)"),
    ],
)
def test_what_is_refused(heads, error, said):
    with pytest.raises(error, match=said):
        regard.combine_heads(WEIGHTS, heads)


def test_layers_are_not_fused():
    with pytest.raises(RegardError, match="2 layers, expected one attention or a Trace"):
        regard.combine_heads([WEIGHTS, WEIGHTS])


def test_a_weighting_for_each_layer_of_a_trace():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(1, 5, 16))
    found = regard.combine_heads(trace, torch.eye(4)[:3])
    for head, record in enumerate(trace):
        torch.testing.assert_close(found[record.name], record.weights()[:, head])
    with pytest.raises(ShapeError, match="layer 2 has none"):
        regard.combine_heads(trace, torch.eye(4)[:2])


def test_one_head_of_a_structured_bias():
    attn = regard.mechanisms.MultiHead(16, 4, position=regard.mechanisms.Alibi(4))
    recipe = attn(torch.randn(2, 6, 16), reduce=[regard.QueryRows([0])]).recipe
    torch.testing.assert_close(regard.combine_heads(recipe, 2), recipe.weights().detach()[:, 2])
    assert regard.rollout([recipe], heads=1).shape == (2, 6, 6)
