"""Sub-layers: where dropout falls, what is refused."""

import re

import pytest
import torch
from torch import nn

from regard import RegardError
from regard.blocks import ConcatProjection, EncoderBlock, FeedForward, PostNorm, PreNorm, Residual
from regard.errors import DtypeError, ShapeError
from regard.mechanisms import Additive, MultiHead


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def test_all_of_an_answer_dropped_leaves_the_stream():
    x, answer = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    residual, joined = Residual(dropout=1.0), ConcatProjection(8, dropout=1.0)
    assert torch.equal(residual(x, answer), x)
    torch.testing.assert_close(joined(x, answer), joined.eval()(x, torch.zeros_like(x)))
    assert torch.equal(residual.eval()(x, answer), x + answer)


def test_all_inside_of_a_feed_forward_dropped_leaves_the_last_bias():
    part, x = FeedForward(8, dropout=1.0), torch.randn(2, 3, 8)
    assert torch.equal(part(x), part.narrow.bias.expand(2, 3, 8))
    assert not torch.equal(part.eval()(x), part.narrow.bias.expand(2, 3, 8))


@pytest.mark.parametrize("wrap", [PreNorm, PostNorm])
def test_the_answer_is_returned_beside_the_stream(wrap):
    sublayer, x = wrap(8, MultiHead(8, 2)), torch.randn(2, 3, 8)
    stream, attended = sublayer(x, weights=True)
    assert stream.shape == x.shape
    assert attended.weights.shape == (2, 2, 3, 3)
    given = sublayer.norm(x) if wrap is PreNorm else x
    torch.testing.assert_close(attended.output, sublayer.part(given).output)


def test_four_times_the_width_is_the_feed_forwards_own():
    assert FeedForward(8).widen.out_features == 32


def test_a_part_that_is_no_module_is_refused(without_shape_checks):
    with pytest.raises(RegardError, match="PreNorm: part is int, expected a module"):
        PreNorm(8, 8)


def test_one_feature_is_not_spread_over_all():
    """Adding (…, 1) would broadcast in silence."""
    text = "Residual: answer: axis width has size 1, expected 8; ConcatProjection(8, 1) joins"
    with pytest.raises(ShapeError, match=re.escape(text)):
        Residual()(torch.randn(2, 3, 8), torch.randn(2, 3, 1))


@pytest.mark.parametrize("wrap", [PreNorm, PostNorm])
@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda wrap: wrap(16, FeedForward(32)), "part: FeedForward takes width 32, expected 16"),
        (lambda wrap: wrap(16, nn.Linear(8, 16)), "part: Linear takes width 8, expected 16"),
        (lambda wrap: wrap(16, MultiHead(8, 2)), "part: MultiHead takes width 8, expected 16"),
        (
            lambda wrap: wrap(16, Additive(8, 16, width=4)),
            "part: Additive takes width 8, expected 16",
        ),
        (
            lambda wrap: wrap(16, FeedForward(16), norm=nn.LayerNorm(8)),
            "norm: LayerNorm takes width 8, expected 16",
        ),
        (
            lambda wrap: wrap(16, FeedForward(16), norm=nn.LayerNorm),
            "norm is the class LayerNorm, expected a module",
        ),
        (lambda wrap: wrap(16, FeedForward), "part is the class FeedForward, expected a module"),
        (
            lambda wrap: wrap(16, FeedForward(16), join=Residual),
            "join is the class Residual, expected a module",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_once(wrap, build, text, without_shape_checks):
    with pytest.raises(RegardError, match=re.escape(f"{wrap.__name__}: {text}")):
        build(wrap)


def test_blocks_in_a_sequential_are_told_of_stack(without_shape_checks):
    blocks = [EncoderBlock(PreNorm(8, MultiHead(8, 2)), PreNorm(8, FeedForward(8))) for _ in "ab"]
    text = (
        "EncoderBlock: x is BlockOutput, expected features (batch, position, width) (its .output; "
        "Stack([...]) puts blocks together)"
    )
    with pytest.raises(DtypeError, match=re.escape(text)):
        nn.Sequential(*blocks)(torch.randn(2, 3, 8))
