"""A state remembers what it was told of padding; with a state a block is causal."""

import pytest
import torch
from torch.utils import _pytree

from regard import masks
from regard.blocks import DecoderBlock, EncoderBlock, FeedForward, PreNorm, Stack
from regard.mechanisms import Additive, DotProduct, LocalPredictive, Luong, MultiHead


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def decoder():
    return DecoderBlock(
        PreNorm(8, MultiHead(8, 2)), PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8))
    ).double()


def encoder():
    return EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8))).double()


KEEP = torch.tensor([[True] * 5, [False, True, True, True, False]])
SAID = pytest.mark.parametrize(
    "said", [masks.padding(KEEP), KEEP[:, None, None], masks.padding(KEEP) & masks.window(9, 9)]
)


@SAID
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("start", [1, 2])
def test_the_padding_of_the_context_is_said_once(said, again, start):
    block, x, context = decoder(), normal(2, 6, 8), normal(2, 5, 8)
    want = block(x, context, context_mask=masks.padding(KEEP), weights=True)
    blocked = block(x[:, :start], context, context_mask=said, state=True)
    outputs = [blocked.output]
    for now in range(start, 6):
        told = {"context_mask": said} if again else {}
        blocked = block(x[:, now : now + 1], state=blocked.state, weights=True, **told)
        outputs.append(blocked.output)
        assert not blocked.attentions["cross"].weights[1, :, :, [0, 4]].any()
    torch.testing.assert_close(torch.cat(outputs, 1), want.output)


def test_a_stack_remembers_for_every_layer():
    stack, x, context = Stack([decoder(), decoder()]), normal(2, 6, 8), normal(2, 5, 8)
    want = stack(x, context, context_mask=masks.padding(KEEP)).output[:, 4:]
    state = stack(x[:, :4], context, context_mask=masks.padding(KEEP), state=True).state
    torch.testing.assert_close(stack(x[:, 4:], state=state).output, want)


@pytest.mark.parametrize("later", ["nothing", "padding", "window"])
def test_padding_on_the_left_is_said_once(later):
    block, x = encoder(), normal(2, 8, 8)
    keep = torch.nn.functional.pad(KEEP[:, :4], (0, 4), value=True)
    window = masks.window(99, 0)
    want = block(x, mask=masks.padding(keep), causal=True).output[keep]
    blocked = block(x[:, :4], mask=masks.padding(KEEP[:, :4]), state=True)
    outputs = [blocked.output]
    for now in range(4, 8):
        mask = {"nothing": None, "padding": masks.padding(keep[:, : now + 1]), "window": window}
        blocked = block(x[:, now : now + 1], mask=mask[later], state=blocked.state)
        outputs.append(blocked.output)
    torch.testing.assert_close(torch.cat(outputs, 1)[keep], want)
    assert torch.equal(blocked.state["self"].padding, keep)


def test_a_mask_that_speaks_of_padding_speaks_for_all_keys():
    attn, x = MultiHead(8, 2).double(), normal(2, 4, 8)
    first = attn(x[:, :3], mask=masks.padding(KEEP[:, :3]), state=True)
    every = masks.padding(torch.ones(2, 4, dtype=torch.bool))
    got = attn(x[:, 3:], mask=every, state=first.state, weights=True)
    assert got.weights.min() > 0
    assert got.state.padding.all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: MultiHead(8, 2),
        DotProduct,
        lambda: Additive(8, 8, width=4),
        lambda: Luong(window=LocalPredictive(8)),
    ],
)
def test_fix_and_begin_remember(build):
    attn, query, key = build().double(), normal(2, 3, 8), normal(2, 5, 8)
    mask = masks.padding(KEEP)
    want = attn(query, key, mask=mask).output
    state = attn.fix(key, mask=mask)
    torch.testing.assert_close(attn(query, state=state).output, want)
    torch.testing.assert_close(attn(query, state=attn(query, state=state).state).output, want)
    started = attn.begin(key[:, :4], mask=masks.padding(KEEP[:, :4]))
    more = masks.padding(KEEP | (torch.arange(5) == 4))
    want = attn(query, key, mask=more).output
    torch.testing.assert_close(attn(query, key[:, 4:], state=started).output, want)


def test_what_depends_on_the_query_is_not_remembered():
    attn, x = MultiHead(8, 2).double(), normal(2, 4, 8)
    for mask in (masks.window(0, 0), torch.eye(3, dtype=torch.bool)[None, None]):
        state = attn(x[:, :3], mask=mask, state=True).state
        assert state.padding is None
        assert attn(x[:, 3:], state=state, weights=True).weights.min() > 0


def test_beams_are_reordered_with_their_padding():
    block, context = decoder(), normal(2, 5, 8)
    state = block(normal(2, 3, 8), context, context_mask=masks.padding(KEEP[1:]), state=True).state
    assert all(isinstance(leaf, torch.Tensor) for leaf in _pytree.tree_leaves(state))
    turned = _pytree.tree_map(lambda tensor: tensor[[1, 1, 0]], state)
    assert turned["cross"].padding.shape == (3, 5)
    assert block(normal(3, 1, 8), state=turned).output.shape == (3, 1, 8)


@pytest.mark.compiled
def test_a_compiled_step_heeds_it():
    block, x, context = decoder(), normal(2, 6, 8), normal(2, 5, 8)
    full = block(x, context, context_mask=masks.padding(KEEP)).output
    torch.compiler.reset()
    step = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        blocked = block(x[:, :3], context, context_mask=masks.padding(KEEP), state=True)
        for now in range(3, 6):
            blocked = step(x[:, now : now + 1], state=blocked.state)
            torch.testing.assert_close(blocked.output, full[:, now : now + 1])


@pytest.mark.parametrize("build", [encoder, lambda: Stack([encoder(), encoder()])])
def test_with_a_state_a_block_is_causal_unless_told(build):
    block, x = build(), normal(2, 6, 8)
    want = block(x, causal=True).output
    first = block(x[:, :4], state=True)
    torch.testing.assert_close(first.output, want[:, :4])
    torch.testing.assert_close(block(x[:, 4:], state=first.state).output, want[:, 4:])
    both_ways = block(x[:, :4], causal=False, state=True).output
    torch.testing.assert_close(both_ways, block(x[:, :4]).output)
    assert (both_ways - first.output).abs().max() > 1e-3
