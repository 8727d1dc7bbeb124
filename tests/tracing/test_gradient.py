"""`grad=True`: the gradient by the weights, after backward."""

from contextlib import nullcontext, suppress

import pytest
import torch
from capture_models import Attention, fused, handmade, words
from eager import Eager, every_stack, loss
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import RegardError, StateError, UnavailableError


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
