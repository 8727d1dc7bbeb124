"""Capture reads linear attention and delta rules of our own mechanisms."""

import contextlib

import pytest
import torch
from torch import nn

import regard
from regard import masks
from regard.mechanisms import DeltaRule, GatedDecay, LinearAttention


class TwoMemories(nn.Module):
    """Linear attention over the input, then a gated delta rule over what came out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = LinearAttention(16, 2)
        self.delta = DeltaRule(16, 2, decay=GatedDecay(16, 2))
        self.asked: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor, mask=None) -> torch.Tensor:
        self.asked = []
        for part in (self.linear, self.delta):
            self.asked.append(part(x, mask=mask, causal=True, weights=True).weights)
            x = x + part(x, mask=mask, causal=True).output
        return x


@pytest.mark.parametrize("context", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_weights_are_those_of_the_mechanism(context):
    model, x = TwoMemories().eval(), torch.randn(2, 70, 16)
    with context():
        plain = model(x)
        with regard.capture(model) as trace:
            assert torch.equal(model(x), plain)
    assert trace.names() == ["linear", "linear#2", "delta", "delta#2"]
    assert [record.kind for record in trace] == ["distribution"] * 2 + ["signed"] * 2
    for record, asked in zip(trace, [asked for asked in model.asked for _ in range(2)]):
        torch.testing.assert_close(record.weights(), asked)
        assert record.site.attends == "self"
    assert not trace.notes


def test_values_gradients_and_padding():
    model, x = TwoMemories().double(), torch.randn(2, 9, 16, dtype=torch.float64)
    keep = torch.arange(9) < torch.tensor([[9], [6]])
    with regard.capture(model, values=True, grad=True) as trace:
        model(x, masks.padding(keep)).square().sum().backward()
    for record in (trace[1], trace[3]):  # the calls that asked for nothing
        assert not record.weights()[1, ..., 6:].any()
        value = record.recipe.value
        torch.testing.assert_close(record.weights() @ value, record.recipe.mixed())
        assert record.gradient().shape == record.weights().shape and record.gradient().any()


@pytest.mark.parametrize("build", [LinearAttention, DeltaRule])
def test_gradient_with_respect_to_the_weights(build):
    attn, x = build(16, 2).double(), torch.randn(1, 7, 16, dtype=torch.float64)
    with regard.capture(attn, values=True, grad=True) as trace:
        attn(x, causal=True).output.square().sum().backward()
    weights = trace[0].weights().detach().requires_grad_()
    mixed = weights @ trace[0].recipe.value  # (batch, head, query, width)
    attn.finish(mixed, trace[0].recipe).square().sum().backward()
    torch.testing.assert_close(trace[0].gradient(), weights.grad)


def test_a_decoding_step_says_where_its_earlier_keys_are():
    attn, x = DeltaRule(16, 2).eval(), torch.randn(1, 5, 16)
    state = attn(x[:, :4], causal=True, state=True).state
    with pytest.warns(regard.CaptureWarning, match="earlier calls"), regard.capture(attn) as trace:
        attn(x[:, 4:], causal=True, state=state)
    assert trace[0].weights().shape == (1, 2, 1, 1)
