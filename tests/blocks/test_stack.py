"""Stacks: order, shared weights, names, states of each layer, errors."""

import re

import pytest
import torch
from torch import nn

from regard import RegardError
from regard.blocks import ConcatProjection, DecoderBlock, EncoderBlock, FeedForward, PreNorm, Stack
from regard.errors import DtypeError, StateError
from regard.mechanisms import MultiHead


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def encoder():
    return EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8, 12))).eval()


def decoder():
    return DecoderBlock(
        PreNorm(8, MultiHead(8, 2)),
        PreNorm(8, MultiHead(8, 2)),
        PreNorm(8, FeedForward(8, 12)),
    ).eval()


def size(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_layers_follow_each_other_and_the_norm_comes_last():
    first, second, norm, x = encoder(), encoder(), nn.LayerNorm(8), torch.randn(2, 4, 8)
    want = norm(second(first(x).output).output)
    torch.testing.assert_close(Stack([first, second], norm=norm)(x).output, want)


@pytest.mark.parametrize(
    ("count", "order"), [(1, [0] * 4), (2, [0, 0, 1, 1]), (2, [0, 1, 0, 1])], ids=str
)
def test_shared_layers_are_the_same_block_again(count, order):
    blocks, x = [encoder() for _ in range(count)], torch.randn(2, 4, 8)
    stack, want = Stack(blocks, order=order), x
    for place in order:
        want = blocks[place](want).output
    blocked = stack(x, weights=True)
    torch.testing.assert_close(blocked.output, want)
    assert list(blocked.attentions) == [f"{layer}.self" for layer in range(4)]
    assert size(stack) == count * size(blocks[0])
    assert len(stack.state_dict()) == count * len(blocks[0].state_dict())


def test_a_shared_block_gets_the_gradients_of_all_its_layers():
    block, x = encoder().double(), torch.randn(1, 3, 8, dtype=torch.float64)
    weight = block.feed_forward.part.narrow.weight
    Stack([block], order=[0, 0])(x).output.square().sum().backward()
    step = torch.zeros_like(weight)
    step[1, 2] = 1e-6
    answers = []
    with torch.no_grad():
        for sign in (1, -1):
            weight.add_(sign * step)
            answers.append(float(block(block(x).output).output.square().sum()))
            weight.sub_(sign * step)
    assert float(weight.grad[1, 2]) == pytest.approx((answers[0] - answers[1]) / 2e-6, rel=1e-5)


def test_every_layer_has_its_own_state_though_weights_are_shared():
    stack, x, context = (
        Stack([decoder()], order=[0] * 3),
        torch.randn(2, 5, 8),
        torch.randn(2, 4, 8),
    )
    full = stack(x, context, weights=True)
    assert list(full.attentions) == [
        "0.self", "0.cross", "1.self", "1.cross", "2.self", "2.cross"
    ]  # fmt: skip
    state, given, outputs = True, (context,), []
    for now in range(5):
        step = stack(x[:, now : now + 1], *given, state=state)
        state, given = step.state, ()
        outputs.append(step.output)
    torch.testing.assert_close(torch.cat(outputs, 1), full.output, rtol=0, atol=1e-5)
    assert len(state) == 3
    assert not torch.equal(state[0]["self"].key, state[1]["self"].key)


def test_a_mixed_stack_is_causal_throughout_and_gives_the_context_to_whom_it_concerns():
    stack, context = Stack([encoder(), decoder(), encoder()]), torch.randn(2, 4, 8)
    x = torch.randn(2, 5, 8)
    blocked = stack(x, context, weights=True)
    assert list(blocked.attentions) == ["0.self", "1.self", "1.cross", "2.self"]
    loud = torch.cat([x[:, :3], -1e4 * x[:, 3:]], 1)  # a norm would not see the size alone
    got = stack(loud, context).output[:, :3]
    torch.testing.assert_close(got, blocked.output[:, :3], rtol=0, atol=1e-6)
    assert stack.causal and stack.needs_context
    assert not Stack([encoder()]).causal


def test_a_stack_of_stacks_names_both():
    stack = Stack([Stack([encoder()], order=[0, 0]), encoder()])
    assert list(stack(torch.randn(1, 3, 8)).attentions) == ["0.0.self", "0.1.self", "1.self"]


def test_printing_shows_who_is_shared():
    assert "order=[0, 0]" in str(Stack([encoder()], order=[0, 0]))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in its compiler
def test_inductor_trains_as_eager_does():
    stack = Stack([encoder(), decoder()], order=[0, 1, 1]).train()
    x, context = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    torch.compiler.reset()
    gradients = []
    for module in (torch.compile(stack, fullgraph=True), stack):
        blocked = module(x, context, weights=True)
        loss = blocked.output.square().sum()
        loss = loss + sum(a.weights.square().sum() for a in blocked.attentions.values())
        gradients.append(torch.autograd.grad(loss, list(stack.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_wrong_stacks_are_refused(without_shape_checks):
    block = encoder()
    cases = {
        "Stack: a block is listed twice; list it once and share it by order=, as "
        "Stack([block], order=[0] * 2)": ([block, block], None),
        "Stack: order=[0, 2], expected numbers of 2 blocks, each at least once": (
            [block, encoder()],
            [0, 2],
        ),
        "Stack: order=[], expected numbers of 0 blocks": ([], None),
        "Stack: blocks[0] is Linear, expected an AttentionBlock": ([nn.Linear(8, 8)], None),
    }
    for text, (blocks, order) in cases.items():
        with pytest.raises(RegardError, match=re.escape(text)):
            Stack(blocks, order=order)


def test_wrong_inputs_are_named():
    stack, x = Stack([encoder()], order=[0, 0]), torch.randn(2, 3, 8)
    with pytest.raises(RegardError, match="Stack: context was given, but nothing here attends"):
        stack(x, x)
    with pytest.raises(StateError, match=r"Stack: state is tuple of 1, expected .* a tuple of 2"):
        stack(x, state=({},))
    with pytest.raises(StateError, match="Stack: state is dict, expected"):
        stack(x, state={})
    with pytest.raises(RegardError, match="DecoderBlock: context is missing"):
        Stack([decoder()])(x)


@torch.no_grad()
def test_autocast_at_once_and_step_by_step():
    """A layer that concatenates hands bfloat16 on; the context stays float32."""

    def block():
        join = ConcatProjection(8)
        return DecoderBlock(
            PreNorm(8, MultiHead(8, 2)),
            PreNorm(8, MultiHead(8, 2), join=join),
            PreNorm(8, FeedForward(8)),
        )

    stack, x, context = Stack([block(), block()]).eval(), torch.randn(2, 5, 8), torch.randn(2, 7, 8)
    truth = stack(x, context).output
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = stack(x, context).output
        first = stack(x[:, :2], context, state=True)
        steps = torch.cat([first.output, stack(x[:, 2:], state=first.state).output], 1)
    torch.testing.assert_close(whole.float(), truth, atol=0.1, rtol=0.1)
    torch.testing.assert_close(steps.float(), whole.float(), atol=0.05, rtol=0.05)
    with pytest.raises(
        DtypeError, match=r"context is torch\.bfloat16, expected torch\.float32 as x"
    ):
        stack(x, context.bfloat16())
