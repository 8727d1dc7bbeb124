"""Gradients: weights that stay in the graph, and the weights' own gradient after backward."""

import math
from contextlib import nullcontext, suppress

import pytest
import torch
from capture_models import Attention, Stack, fused, handmade, words
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError, StateError, UnavailableError

# -- grad=True: the gradient by the weights


class Eager(nn.Module):
    """The truth: every attention of a stack with weights that autograd can be asked about."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def forward(self, x):
        self.weights = []
        for layer in self.stack.layers:
            weights = layer.weigh(x)
            weights.retain_grad()
            self.weights.append(weights)
            value = layer.parts(x)[2].repeat_interleave(2 // layer.groups, 1)
            dropped = F.dropout(weights, layer.dropout, layer.training)
            x = x + layer.out((dropped @ value).transpose(1, 2).flatten(2))
        return x

    def gradients(self, x, loss):
        torch.manual_seed(7)
        loss(self(x)).backward()
        return [weights.grad for weights in self.weights]


def loss(out):
    return (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).square().sum()


STACKS = {
    "fused": lambda: fused(3),
    "fused, causal": lambda: fused(3, causal=True),
    "fused, grouped": lambda: fused(3, groups=1),
    "handmade": lambda: handmade(3),
    "handmade, grouped, causal": lambda: handmade(3, groups=1, causal=True),
    "handmade, dropout": lambda: handmade(3, dropout=0.5),
    "mixed": lambda: Stack(Attention(True), Attention(False), Attention(True, 1)),
}
every_stack = pytest.mark.parametrize("build", STACKS.values(), ids=STACKS)


@every_stack
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
def test_the_gradient_is_that_of_eager_weights(build, inside):
    model, x = build(), words(2, 5, 8)
    expected = Eager(model).gradients(x, loss)
    torch.manual_seed(7)
    with regard.capture(model, grad=True) as trace:
        value = loss(model(x))
        if inside:
            value.backward()
    if not inside:
        value.backward()
    assert len(trace) == 3
    for record, truth in zip(trace, expected, strict=True):
        found = record.gradient()
        assert found.shape == record.shape and not found.requires_grad
        torch.testing.assert_close(found, truth, atol=1e-5, rtol=1e-5)
        assert truth.abs().max() > 1e-3


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("path", ["auto", "full"])
def test_every_pass_has_its_own(path, inside):
    model, passes = fused(2), [words(2, 5, 8, seed=n) for n in range(3)]
    expected = [g for x in passes for g in Eager(model).gradients(x, loss)]
    losses = []
    with regard.capture(model, grad=True, path=path) as trace:
        for x in passes:
            losses.append(loss(model(x)))
            if inside:
                losses.pop().backward()
    for value in losses:
        value.backward()
    for record, truth in zip(trace, expected, strict=True):
        torch.testing.assert_close(record.gradient(), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_several_heads_to_a_group(groups):
    query, key, value = (words(2, n, 5, 4, seed=n) for n in (4, groups, groups))
    query.requires_grad_()

    def attend(query):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True) * 1.0

    weights = (query @ key.repeat_interleave(4 // groups, 1).mT / 2).softmax(-1)
    weights.retain_grad()
    loss(weights @ value.repeat_interleave(4 // groups, 1)).backward()
    with regard.capture(attend, grad=True) as trace:
        loss(attend(query)).backward()
    torch.testing.assert_close(trace[0].gradient(), weights.grad, atol=1e-5, rtol=1e-5)
    some = trace[0].of_heads(3, 1).gradient(slice(1, 3))
    torch.testing.assert_close(some, weights.grad[:, [3, 1], 1:3], atol=1e-5, rtol=1e-5)


def test_the_fused_path_is_refused():
    """It cannot tell when an output has found its place in the graph."""
    with pytest.raises(RegardError, match=r"grad=True needs path='full' or 'auto'"):
        regard.capture(None, grad=True, path="fused")


@pytest.mark.parametrize("seeded", [True, False])
def test_the_output_itself_goes_backward(seeded):
    """Nothing, or only a sum, runs between the attention and backward: right or refused."""

    def attend(query):
        return F.scaled_dot_product_attention(query, query, query)

    query = words(1, 2, 3, 4).requires_grad_()
    seed = words(1, 2, 3, 4, seed=1) if seeded else torch.ones(1, 2, 3, 4)
    with regard.capture(attend, grad=True) as trace:
        out = attend(query)
        out.backward(seed) if seeded else out.sum().backward()
    with suppress(StateError) if seeded else nullcontext():
        torch.testing.assert_close(trace[0].gradient(), seed @ query.detach().mT)


@every_stack
def test_rows(build):
    model, x = build(), words(2, 5, 8)
    with regard.capture(model, grad=True) as trace:
        loss(model(x)).backward()
    for record in trace:
        whole = record.gradient()
        torch.testing.assert_close(record.gradient(slice(1, 3)), whole[:, :, 1:3])
        torch.testing.assert_close(record.gradient(slice(-1, None)), whole[:, :, -1:])
        strips = [record.gradient(slice(n, n + 1)) for n in range(5)]
        torch.testing.assert_close(torch.cat(strips, 2), whole)


def test_several_backward_passes_add_up():
    model, x = fused(1), words(2, 5, 8)
    with regard.capture(model, grad=True) as trace:
        out = model(x)
    loss(out).backward(retain_graph=True)
    once = trace[0].gradient()
    loss(out).backward()
    torch.testing.assert_close(trace[0].gradient(), 2 * once)
    torch.testing.assert_close(once, trace[0].gradient() / 2)


@pytest.mark.parametrize("build", [fused, handmade])
def test_before_backward(build):
    model, x = build(1), words(2, 5, 8)
    with regard.capture(model, grad=True) as trace:
        model(x)
        with pytest.raises(StateError, match=r"layers\.0: backward has not run"):
            trace[0].gradient()
    with pytest.raises(StateError, match=r"layers\.0: backward has not run"):
        trace[0].gradient()


def test_a_loss_that_does_not_depend_on_it():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = Attention(), Attention()

        def forward(self, x):
            self.unused(x)
            return self.used(x)

    model, x = Two(), words(2, 5, 8)
    with regard.capture(model, grad=True) as trace:
        model(x).sum().backward()
    trace["used"].gradient()
    with pytest.raises(StateError, match="unused: backward has not run, or the loss does not"):
        trace["unused"].gradient()


@pytest.mark.parametrize("build", [fused, handmade])
def test_without_a_graph(build):
    model, x = build(1), words(2, 5, 8)
    with torch.no_grad(), regard.capture(model, grad=True) as trace:
        model(x)
    with pytest.raises((UnavailableError, StateError), match=r"layers\.0: .*gradient|backward"):
        trace[0].gradient()


@every_stack
@pytest.mark.parametrize("options", [{"grad": True}, {"attached": True}, {}], ids=str)
def test_parameter_gradients_are_the_same_bits(build, options):
    model, x = build(), words(2, 5, 8)
    torch.manual_seed(7)
    loss(model(x)).backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.manual_seed(7)
    with regard.capture(model, **options):
        loss(model(x)).backward()
    for parameter, expected in zip(model.parameters(), plain, strict=True):
        assert torch.equal(parameter.grad, expected)


def test_memory_is_that_of_the_output_not_of_the_weights():
    model, x = fused(1), words(1, 300, 8)
    with regard.capture(model, grad=True) as trace:
        model(x).sum().backward()
    held = []
    kept = trace[0]._gradient
    for value in vars(kept).values():
        if isinstance(value, torch.Tensor):
            held.append(value.numel())
    assert held and max(held) <= 300 * 8
    assert trace[0].gradient().shape == (1, 2, 300, 300)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention(need_weights):
    module, x = nn.MultiheadAttention(8, 2, batch_first=True), words(2, 5, 8)
    query, key, value = (
        part.unflatten(-1, (2, 4)).transpose(1, 2)
        for part in F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    weights = (query @ key.mT / 2).softmax(-1)
    weights.retain_grad()
    loss(module.out_proj((weights @ value).transpose(1, 2).flatten(2))).backward()
    with regard.capture(module, grad=True) as trace:
        loss(module(x, x, x, need_weights=need_weights)[0]).backward()
    torch.testing.assert_close(trace[0].gradient(), weights.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep", ["weights", [regard.HeadMean()]], ids=["weights", "reductions"])
def test_with_other_ways_to_keep(keep):
    """The gradient is of the weights, whatever of them is held."""
    model, x = fused(1), words(2, 5, 8)
    expected = Eager(model).gradients(x, loss)
    with regard.capture(model, grad=True, keep=keep) as trace:
        loss(model(x)).backward()
    torch.testing.assert_close(trace[0].gradient(), expected[0], atol=1e-5, rtol=1e-5)


def test_relevance_in_one_line():
    """Weights times their gradient, as people use it."""
    model, x = fused(2), words(2, 5, 8)
    eager = Eager(model)
    expected = eager.gradients(x, loss)
    with regard.capture(model, grad=True) as trace:
        loss(model(x)).backward()
    for record, grad, weights in zip(trace, expected, eager.weights):
        found = (record.weights() * record.gradient()).clamp_min(0).mean(1)
        torch.testing.assert_close(
            found, (weights.detach() * grad).clamp_min(0).mean(1), atol=1e-5, rtol=1e-5
        )


# -- attached=True: weights in the graph


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
@pytest.mark.parametrize("groups", [1, 2])
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
    with torch.no_grad(), regard.capture(model, attached=True) as trace:
        model(x)
    for record in trace:
        assert not record.weights().requires_grad


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
