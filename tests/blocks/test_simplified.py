"""Simplified blocks: the paper's sums, sizes, and the identity at the start."""

import pytest
import torch
from torch import nn

from regard.blocks import (
    EncoderBlock,
    FeedForward,
    ParallelBlock,
    PreNorm,
    ScaledResidual,
    Skipless,
    Stack,
    sas_block,
    sas_p_block,
)
from regard.errors import RegardError, ShapeError
from regard.mechanisms import MultiHead

both = pytest.mark.parametrize("build", [sas_block, sas_p_block])


def moved(block):
    """Away from the start."""
    for parameter in block.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return block.double().eval()


def matrices(module):
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


@both
def test_a_block_has_ten_squares_of_weights_and_a_usual_one_twelve(build):
    width = 24
    usual = EncoderBlock(PreNorm(width, MultiHead(width, 4)), PreNorm(width, FeedForward(width)))
    assert matrices(usual) == 12 * width**2
    assert matrices(build(width, 4)) == 10 * width**2
    assert matrices(build(width, 4, values=True)) == 11 * width**2  # the first of a stack


def test_sas_is_the_sum_of_the_paper():
    torch.manual_seed(0)
    block, x = moved(sas_block(12, 3)), torch.randn(2, 5, 12).double()
    attention, feed_forward = block.self_attention, block.feed_forward
    seen = attention.join.gain * attention.part(attention.norm(x), causal=True).output
    fed = feed_forward.part(feed_forward.norm(seen))
    want = feed_forward.join.skip * seen + feed_forward.join.gain * fed
    torch.testing.assert_close(block(x, causal=True).output, want)


def test_sas_p_is_the_sum_of_the_paper():
    torch.manual_seed(0)
    block, x = moved(sas_p_block(12, 3)), torch.randn(2, 5, 12).double()
    normed = block.norm(x)
    seen, fed = block.self_attention(normed, causal=True).output, block.feed_forward(normed)
    want = block.attention_gain * seen + block.feed_forward_gain * fed
    torch.testing.assert_close(block(x, causal=True).output, want)


@torch.no_grad()
@both
def test_at_the_start_attention_gives_back_what_it_got(build):
    torch.manual_seed(0)
    x = torch.randn(2, 100, 64)
    block = build(64, 4, values=True)
    norm = block.self_attention.norm if build is sas_block else block.norm
    seen = block(x, causal=True).attentions["self"].output
    assert float((seen - norm(x)).abs().max()) < 1e-6
    bare = Stack([build(64, 4, gain=0.0, norm=nn.Identity) for _ in range(6)])
    assert float((bare(x, causal=True).output - x).abs().max()) < 6e-6  # 1e-6 a block


@both
def test_a_deep_stack_decodes_step_by_step(build):
    torch.manual_seed(0)
    stack = moved(Stack([build(12, 3, values=layer == 0) for layer in range(3)]))
    x = torch.randn(2, 7, 12).double()
    state, outputs = True, []
    for position in range(7):
        step = stack(x[:, position : position + 1], state=state)
        state = step.state
        outputs.append(step.output)
    torch.testing.assert_close(torch.cat(outputs, 1), stack(x, causal=True).output)


def test_joins():
    x, answer = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(ScaledResidual(2.0, 0.5)(x, answer), 2 * x + 0.5 * answer)
    torch.testing.assert_close(Skipless(3.0)(x, answer), 3 * answer)


def test_a_parallel_block_with_a_skip():
    torch.manual_seed(0)
    block = ParallelBlock(8, MultiHead(8, 2), FeedForward(8)).eval()
    x = torch.randn(2, 5, 8)
    normed = block.norm(x)
    want = x + block.self_attention(normed).output + block.feed_forward(normed)
    torch.testing.assert_close(block(x).output, want)


@pytest.mark.parametrize(
    ("parts", "error", "text"),
    [
        ((FeedForward(8), FeedForward(8)), RegardError, "self_attention is FeedForward, expected"),
        (
            (MultiHead(8, 2), FeedForward),
            RegardError,
            "feed_forward is the class \\w+, expected a module",
        ),
        ((MultiHead(8, 2), FeedForward(6)), ShapeError, "FeedForward takes width 6, expected 8"),
    ],
)
def test_parts_that_do_not_fit(without_shape_checks, parts, error, text):
    with pytest.raises(error, match=f"ParallelBlock: .*{text}"):
        ParallelBlock(8, *parts)
