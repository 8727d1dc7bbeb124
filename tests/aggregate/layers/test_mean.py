"""The mean over heads and layers."""

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError, ShapeError

torch.manual_seed(0)
STACK = torch.randn(4, 2, 3, 7, 7, dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("token", [None, 2, [0, -1], list(range(7))])
@pytest.mark.parametrize("layers", ["mean", "last", "each"])
@pytest.mark.parametrize("heads", ["mean", "max", 1])
def test_against_dense(heads, layers, token):
    fused = {"mean": STACK.mean(2), "max": STACK.amax(2), 1: STACK[:, :, 1]}[heads]
    truth = fused if token is None else fused[:, :, token]
    truth = {"mean": truth.mean(0), "last": truth[-1], "each": truth}[layers]
    found = regard.mean_attention(list(STACK), token, heads=heads, layers=layers)
    torch.testing.assert_close(found, truth)


def test_cross_attention():
    model = nn.Transformer(8, 2, 1, 2, 16, batch_first=True).eval()
    with torch.no_grad(), regard.capture(model) as trace:
        model(torch.randn(1, 5, 8), torch.randn(1, 3, 8))
    found = regard.mean_attention(trace, -1, part="cross")
    torch.testing.assert_close(found, torch.stack(trace.cross_attentions).mean((0, 2))[:, -1])


def test_what_is_refused():
    with pytest.raises(RegardError, match="layers='first'"):
        regard.mean_attention(list(STACK), layers="first")
    with pytest.raises(ShapeError, match="no mean"):
        regard.mean_attention([STACK[0], STACK[1][..., :5, :5].softmax(-1)])
