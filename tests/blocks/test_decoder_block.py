"""The decoder block: its equations in loops, masks, causality, decoding step by step."""

import re

import block_readings as readings
import pytest
import torch
from torch import nn

from regard import RegardError, masks
from regard.blocks import ConcatProjection, DecoderBlock, FeedForward, PostNorm, PreNorm
from regard.errors import ShapeError, StateError
from regard.mechanisms import Additive, DotProduct, LocalMonotonic, Luong, MultiHead

BOTH = pytest.mark.parametrize("wrap", [PreNorm, PostNorm])
JOINED = pytest.mark.parametrize("joined", [False, True], ids=["residual", "concatenated"])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def block_of(wrap=PreNorm, joined=False, cross=None):
    block = DecoderBlock(
        wrap(8, MultiHead(8, 2)),
        wrap(
            8,
            MultiHead(8, 4, inputs=(6, 6)) if cross is None else cross,
            join=ConcatProjection(8) if joined else None,
        ),
        wrap(8, FeedForward(8, 12)),
    )
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block.double().eval()


@BOTH
@JOINED
def test_it_is_its_equations_in_loops(wrap, joined):
    block, x, context = block_of(wrap, joined), normal(2, 4, 8), normal(2, 5, 6)
    with torch.no_grad():
        want = [
            readings.decoder_block(block, each, about, pre=wrap is PreNorm, joined=joined)
            for each, about in zip(x, context)
        ]
    got = block(x, context).output
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-8, atol=1e-8)


def test_concatenation_may_end_in_tanh():
    joined = ConcatProjection(8, 6, activation=nn.Tanh())
    state, answer = torch.randn(2, 3, 8), torch.randn(2, 3, 6)
    weight, bias = joined.project.weight, joined.project.bias
    want = torch.tanh(torch.cat([answer, state], -1) @ weight.T + bias)
    torch.testing.assert_close(joined(state, answer), want)


@BOTH
def test_the_future_is_hidden_unless_asked(wrap):
    block, x, context = block_of(wrap), normal(2, 6, 8), normal(2, 5, 6)
    loud = torch.cat([x[:, :3], -1e4 * x[:, 3:]], 1)  # a norm would not see the size alone
    past = block(x, context).output[:, :3]
    torch.testing.assert_close(block(loud, context).output[:, :3], past, rtol=0, atol=1e-12)
    moved = block(loud, context, causal=False).output - block(x, context, causal=False).output
    assert float(moved[:, :3].detach().abs().max()) > 1e-3


def test_a_masked_place_of_the_context_moves_nothing():
    block, x, context = block_of(), normal(2, 4, 8), normal(2, 5, 6)
    keep = torch.tensor([[True] * 3 + [False] * 2, [True] * 4 + [False]])
    flipped = torch.where(keep[..., None], context, -1e4 * context)
    outputs = [
        block(x, about, context_mask=masks.padding(keep)).output for about in (context, flipped)
    ]
    assert torch.equal(*outputs)
    assert not torch.equal(block(x, context).output, block(x, flipped).output)


@pytest.mark.parametrize("joined", [False, True], ids=["residual", "concatenated"])
@BOTH
def test_decoding_step_by_step_is_the_full_pass_in_float32(wrap, joined):
    """Sixty steps with padding in both sequences, to 1e-5."""
    block = block_of(wrap, joined).float()
    x, context = torch.randn(3, 60, 8), torch.randn(3, 9, 6)
    keep = torch.rand(3, 60) > 0.2
    about = torch.rand(3, 9) > 0.3
    about[:, 0] = True
    full = block(x, context, mask=masks.padding(keep), context_mask=masks.padding(about))
    state, given, outputs = True, (context,), []
    for now in range(60):
        blocked = block(
            x[:, now : now + 1],
            *given,
            mask=masks.padding(keep[:, : now + 1]),
            context_mask=masks.padding(about),
            state=state,
        )
        state, given = blocked.state, ()
        outputs.append(blocked.output)
    torch.testing.assert_close(torch.cat(outputs, 1), full.output, rtol=0, atol=1e-5)
    assert state["self"].keys == state["self"].step == 60
    assert state["cross"].keys == 9 and state["cross"].step == 60


def test_the_context_is_prepared_once():
    block, calls = block_of(), []
    block.cross_attention.part.to_key.register_forward_hook(lambda *_: calls.append(1))
    state = block(normal(1, 1, 8), normal(1, 5, 6), state=True).state
    for _ in range(3):
        state = block(normal(1, 1, 8), state=state).state
    assert len(calls) == 1


def test_a_cross_attention_that_counts_steps_goes_on_counting():
    """Luong's monotonic window stands at the step's number, which the fixed state keeps."""
    block = block_of(cross=Luong(window=LocalMonotonic(1)))
    x, context = normal(1, 5, 8), normal(1, 8, 8)
    full, state, given = block(x, context, weights=True), True, (context,)
    for now in range(5):
        step = block(x[:, now : now + 1], *given, state=state, weights=True)
        state, given = step.state, ()
        want = full.attentions["cross"].weights[:, :, now]
        torch.testing.assert_close(step.attentions["cross"].weights[:, :, 0], want)
    torch.testing.assert_close(step.output, full.output[:, -1:])


def test_several_beams_go_on_from_one_state():
    block, context = block_of(), normal(1, 5, 6)
    start, first, second = normal(1, 3, 8), normal(1, 1, 8), normal(1, 1, 8)
    state = block(start, context, state=True).state
    for word in (first, second, first):
        want = block(torch.cat([start, word], 1), context).output[:, -1:]
        torch.testing.assert_close(block(word, state=state).output, want)


@pytest.mark.compiled
def test_a_compiled_step_is_the_step():
    block, x, context = block_of(), normal(2, 6, 8), normal(2, 5, 6)
    full = block(x, context).output
    torch.compiler.reset()
    step = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        state, given, outputs = True, (context,), []
        for now in range(6):
            blocked = step(x[:, now : now + 1], *given, state=state)
            state, given = blocked.state, ()
            outputs.append(blocked.output)
    torch.testing.assert_close(torch.cat(outputs, 1), full)


@pytest.mark.filterwarnings("ignore::regard.blocks.NearIdentityWarning")
def test_unprojected_attention_to_the_context_scales_by_the_true_width():
    block = DecoderBlock(
        PostNorm(8, DotProduct()), PostNorm(8, DotProduct()), PostNorm(8, FeedForward(8))
    ).double()
    x, context = normal(1, 3, 8), normal(1, 4, 8)
    blocked = block(x, context, weights=True)
    inside = block.self_attention.norm(x + blocked.attentions["self"].output)
    want = (inside @ context.mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(blocked.attentions["cross"].weights[:, 0], want)


def test_unprojected_attention_to_the_context_is_not_warned_of():
    block_of(cross=DotProduct())  # a warning would be an error


def test_wrong_contexts_are_named():
    block, x, context = block_of(), normal(2, 3, 8), normal(2, 5, 6)
    state = block(x, context, state=True).state
    cases = {
        "DecoderBlock: context is missing, expected (batch, context position, width)": (x,),
        "DecoderBlock: context has 2 axes (5, 6), expected 3": (x, context[0]),
        "DecoderBlock: context: axis batch has size 1, expected 2 as x": (x, context[:1]),
        "DecoderBlock: context is torch.float32, expected torch.float64": (x, context.float()),
        "key: axis width has size 5, expected 6": (x, context[..., 1:]),
    }
    for text, inputs in cases.items():
        with pytest.raises(RegardError, match=re.escape(text)):
            block(*inputs)
        if len(inputs) > 1:
            with pytest.raises(RegardError, match=re.escape(text)):
                block(*inputs, state=True)
    with pytest.raises(StateError, match="the state holds the context; do not pass it again"):
        block(x, context, state=state)
    with pytest.raises(ShapeError, match="state: axis batch has size 2, expected 1"):
        block(x[:1], state=state)
    mask = masks.padding(torch.ones(2, 4, dtype=torch.bool))
    text = "DecoderBlock: context_mask: masks.padding: axis key has size 4, expected 5"
    with pytest.raises(RegardError, match=re.escape(text)):
        block(x, context, context_mask=mask)
    with pytest.raises(RegardError, match=re.escape(text)):
        block(x, context_mask=mask, state=state)


@pytest.mark.parametrize("state", [None, True])
def test_a_residual_of_another_width_names_the_other_join(state):
    block = block_of(cross=Additive(8, 6, width=4))
    text = "answer: axis width has size 6, expected 8; ConcatProjection(8, 6) joins other widths"
    with pytest.raises(ShapeError, match=re.escape(text)):
        block(normal(1, 3, 8), normal(1, 4, 6), state=state)


@pytest.mark.parametrize("state", [None, True])
def test_an_unprojected_context_of_another_width_is_named(state, without_shape_checks):
    block = block_of(cross=DotProduct())
    with pytest.raises(ShapeError, match=r"width has size 6, expected 8"):
        block(normal(1, 3, 8), normal(1, 4, 6), state=state)
