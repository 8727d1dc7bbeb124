"""The cross block: its equations in loops, what it does with masks and states, errors."""

import block_readings as readings
import pytest
import torch
from torch import nn

import regard
from regard import RegardError, masks
from regard.blocks import CrossBlock, EncoderBlock, FeedForward, PostNorm, PreNorm, Stack
from regard.errors import ShapeError
from regard.mechanisms import Additive, MultiHead


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def drawn(module):
    """Parameters large enough for attention to matter, in float64."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cross(wrap=PostNorm, context_width=6, activation=None, **options):
    attention = MultiHead(8, 2, inputs=(context_width, context_width))
    parts = wrap(8, attention), wrap(8, FeedForward(8, 12, activation=activation))
    return drawn(CrossBlock(*parts, **options))


def test_it_is_the_multihead_attention_block_of_sets():
    block, x, context = cross(), normal(2, 4, 8), normal(2, 7, 6)
    with torch.no_grad():
        want = torch.stack([readings.cross_block(block, *pair) for pair in zip(x, context)])
    torch.testing.assert_close(block(x, context).output, want, rtol=1e-8, atol=1e-8)


def test_it_is_the_cross_attend_of_the_perceiver():
    block = cross(PreNorm, activation=nn.GELU(), context_norm=nn.LayerNorm(6))
    x, context = normal(2, 4, 8), normal(2, 7, 6)
    keep = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    with torch.no_grad():
        want = [
            readings.cross_attend(block, x[n], context[n], lambda i, j, n=n: keep[n, j])
            for n in range(2)
        ]
    got = block(x, context, context_mask=masks.padding(keep)).output
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-8, atol=1e-8)


def test_positions_do_not_see_each_other():
    block, x, context = cross(), normal(1, 4, 8), normal(1, 7, 6)
    alone = torch.cat([block(x[:, i : i + 1], context).output for i in range(4)], 1)
    torch.testing.assert_close(block(x, context).output, alone, rtol=1e-12, atol=1e-12)


def test_a_state_holds_the_normed_context():
    block = cross(PreNorm, context_norm=nn.LayerNorm(6))
    x, context = normal(2, 4, 8), normal(2, 7, 6)
    first = block(x[:, :1], context, state=True)
    rest = block(x[:, 1:], state=first.state)
    got = torch.cat([first.output, rest.output], 1)
    torch.testing.assert_close(got, block(x, context).output, rtol=1e-12, atol=1e-12)


def test_every_block_answers_reducers():
    stack = Stack(
        [cross(), drawn(EncoderBlock(*(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8)))))]
    )
    blocked = stack(normal(2, 4, 8), normal(2, 7, 6), weights=True, reduce=[regard.HeadMean()])
    for attended in blocked.attentions.values():
        torch.testing.assert_close(attended.reductions[0], attended.weights.mean(1))


def test_a_norm_of_another_width_is_refused():
    with pytest.raises(ShapeError, match="context_norm takes width 5, expected 6, the keys of Mul"):
        cross(context_norm=nn.LayerNorm(5))


def test_a_context_of_another_width_is_refused(without_shape_checks):
    for block in (cross(context_norm=nn.LayerNorm(6)), cross()):
        with pytest.raises(ShapeError, match="CrossBlock: context: axis width has size 5, expec"):
            block(normal(2, 4, 8), normal(2, 7, 5))


def test_a_part_that_does_not_attend_is_refused():
    with pytest.raises(RegardError, match="the part of cross_attention is FeedForward"):
        CrossBlock(PreNorm(8, FeedForward(8)), PreNorm(8, FeedForward(8)))


def test_capture_reads_it_as_cross_attention():
    attention = PreNorm(8, Additive(8, 8, width=4))
    block = CrossBlock(attention, PreNorm(8, FeedForward(8))).eval()
    with regard.capture(block) as trace:
        weights = block(torch.randn(2, 4, 8), torch.randn(2, 7, 8), weights=True)
    (record,) = trace
    assert (record.name, record.attends) == ("cross_attention.part", "cross")
    torch.testing.assert_close(record.weights(), weights.attentions["cross"].weights)
