"""`attached=True`: weights that stay in the graph."""

import math

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from eager import Eager, every_stack, loss
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError


@every_stack
def test_attached_weights_have_the_gradient_of_the_formula(build):
    model, x = build(), words(2, 5, 8).requires_grad_()
    torch.manual_seed(7)
    truth = Eager(model)
    truth(x)
    over = [x, *model.parameters()]
    for number in range(3):
        expected = torch.autograd.grad(
            loss(truth.weights[number]), over, retain_graph=True, allow_unused=True
        )
        torch.manual_seed(7)
        with regard.capture(model, attached=True) as trace:
            model(x)
        weights = trace[number].weights()
        assert weights.requires_grad
        found = torch.autograd.grad(loss(weights), over, allow_unused=True)
        assert [g is None for g in found] == [g is None for g in expected]
        for one, other in zip(found, expected):
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_detached_by_default():
    for context in (torch.enable_grad, torch.no_grad):
        model, x = Stack(Attention(), Attention(False)), words(2, 5, 8).requires_grad_()
        with context(), regard.capture(model, values=True, outputs=True) as trace:
            model(x)
        for record in trace:
            assert not record.weights().requires_grad and not record.mixed().requires_grad
            assert not record.output.requires_grad
            assert not record.reduce(regard.Entropy())[0].requires_grad


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
def test_detached_by_default_where_parameters_are_held(context):
    """Native attention and learned queries hold parameters, which always ask for a gradient."""

    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Parameter(words(1, 2, 3, 4))

        def forward(self, x):
            return F.scaled_dot_product_attention(self.query.expand(len(x), -1, -1, -1), x, x)

    native = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    for model, x in ((native, words(2, 5, 8)), (Learned(), words(2, 2, 5, 4))):
        with context(), regard.capture(model, values=True) as trace:
            model(x)
        assert not trace[0].weights().requires_grad and not trace[0].mixed().requires_grad


@pytest.mark.parametrize("build", [fused, handmade])
@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_gradcheck_through_captured_weights(build, groups):
    model = build(2, groups=groups).double()

    def weigh(x):
        with regard.capture(model, attached=True) as trace:
            model(x)
        return tuple(record.weights() for record in trace)

    x = words(1, 3, 8).double().requires_grad_()
    assert torch.autograd.gradcheck(weigh, (x,))
    assert torch.autograd.gradgradcheck(lambda x: weigh(x)[0].square().sum(), (x,))


def test_gradcheck_of_torchs_own_modules():
    for need_weights in (True, False):
        module = nn.MultiheadAttention(8, 2, batch_first=True).double()

        def weigh(x, module=module, need_weights=need_weights):
            with regard.capture(module, attached=True, values=True) as trace:
                module(x, x, x, need_weights=need_weights)
            return trace[0].weights(), trace[0].mixed()

        assert torch.autograd.gradcheck(weigh, (words(1, 3, 8).double().requires_grad_(),))


@pytest.mark.parametrize("build", [fused, handmade])
def test_a_loss_on_the_weights_trains(build):
    """Attention is asked to look at the first key, and learns to."""
    torch.manual_seed(0)
    model, x = build(1), words(4, 6, 8)
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    first = None
    for _ in range(60):
        with regard.capture(model, attached=True) as trace:
            model(x)
        missing = -trace[0].weights()[..., 0].log().mean()
        first = missing.item() if first is None else first
        optimiser.zero_grad()
        missing.backward()
        optimiser.step()
    assert missing < 0.1 * first and first > 1


@pytest.mark.parametrize("build", [fused, handmade])
def test_weights_as_a_bias_in_a_later_layer(build):
    """One layer's weights, captured, added to the scores of another: gradients reach the first."""

    class Reuses(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = build(1), nn.Linear(8, 8)

        def forward(self, x, capture=True):
            if capture:
                with regard.capture(self.first, attached=True) as trace:
                    out = self.first(x)
                weights = trace[0].weights()
            else:
                out, weights = self.first(x), self.first.weigh(x)[0]
            heads = self.second(out).unflatten(-1, (2, 4)).transpose(1, 2)
            return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=weights)

    model, x = Reuses().double(), words(2, 4, 8).double().requires_grad_()
    out, expected = model(x), model(x, capture=False)
    torch.testing.assert_close(out, expected)
    over = [x, *model.parameters()]
    found, truth = (torch.autograd.grad(loss(y), over) for y in (out, expected))
    for one, other in zip(found, truth):
        torch.testing.assert_close(one, other)


def test_attached_and_grad_together():
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    expected = Eager(model).gradients(x, loss)
    with regard.capture(model, attached=True, grad=True) as trace:
        loss(model(x)).backward(retain_graph=True)
    for record, truth in zip(trace, expected):
        torch.testing.assert_close(record.gradient(), truth, atol=1e-5, rtol=1e-5)
        assert record.weights().requires_grad


@pytest.mark.parametrize(
    "keep", ["weights", [regard.HeadMean(differentiable=True)]], ids=["weights", "reductions"]
)
def test_attached_with_other_ways_to_keep_is_refused(keep):
    """What is made below autograd is outside the graph: better no answer than one without it."""
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    with pytest.raises(RegardError, match="attached"):
        regard.capture(model, attached=True, keep=keep)
    with regard.capture(model, attached=True) as trace:
        model(x)
    for record in trace:
        kept = record.with_weights().weights() if keep == "weights" else record.reduce(*keep)[0]
        assert kept.requires_grad


def test_attached_under_no_grad_has_no_graph():
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    with (
        pytest.warns(regard.CaptureWarning, match="gradients are disabled"),
        torch.no_grad(),
        regard.capture(model, attached=True) as trace,
    ):
        model(x)
    for record in trace:
        assert not record.weights().requires_grad


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_torch_attention_that_makes_no_graph_has_none(context):
    """Its parameters want gradients all the same."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with (
        pytest.warns(regard.CaptureWarning, match="gradients are disabled"),
        context(),
        regard.capture(layer, attached=True) as trace,
    ):
        layer(words(2, 5, 8))
    assert not trace[0].weights().requires_grad


def test_values_and_outputs_are_attached_too():
    model, x = Stack(Attention(), Attention(False)), words(2, 5, 8)
    with regard.capture(model, attached=True, values=True, outputs=True) as trace:
        model(x)
    for record, layer in zip(trace, model.layers):
        for found in (record.mixed(), record.output):
            torch.testing.assert_close(found.reshape(layer.mixed.shape), layer.mixed)
            over = layer.value.weight
            one, other = (
                torch.autograd.grad(loss(y.reshape(layer.mixed.shape)), over, retain_graph=True)[0]
                for y in (found, layer.mixed)
            )
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_an_entropy_penalty_differentiates():
    """`reduce` of attached records, with a reducer that says it can."""
    model, x = Stack(Attention()), words(2, 5, 8).requires_grad_()
    with regard.capture(model, attached=True) as trace:
        model(x)
    (entropy,) = trace[0].reduce(regard.Entropy(differentiable=True))
    weights = model.layers[0].weigh(x)
    truth = -(weights * weights.log()).sum(-1)
    assert math.isclose(entropy.sum().item(), truth.sum().item(), rel_tol=1e-5)
    one, other = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (entropy, truth))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
