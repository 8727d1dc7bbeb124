"""The encoder block: its equations in loops, unprojected attention and its warning, errors."""

import math
import re

import block_readings as readings
import pytest
import torch
from torch import nn

from regard import RegardError, masks
from regard.blocks import (
    ConcatProjection,
    EncoderBlock,
    FeedForward,
    NearIdentityWarning,
    PostNorm,
    PreNorm,
    Residual,
)
from regard.errors import ShapeError, StateError
from regard.mechanisms import (
    Additive,
    DotProduct,
    GeneralScore,
    LocalPredictive,
    Luong,
    MultiHead,
)

BOTH = pytest.mark.parametrize("wrap", [PreNorm, PostNorm])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def block_of(wrap, attention=None, width=8, **options):
    attention = MultiHead(width, 2) if attention is None else attention
    block = EncoderBlock(wrap(width, attention, **options), wrap(width, FeedForward(width, 12)))
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block.double().eval()


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@BOTH
def test_it_is_its_equations_in_loops(wrap):
    block, x = block_of(wrap), normal(2, 5, 8)
    with torch.no_grad():
        want = [readings.encoder_block(block, each, pre=wrap is PreNorm) for each in x]
    torch.testing.assert_close(block(x).output, torch.stack(want), rtol=1e-8, atol=1e-8)


@BOTH
def test_causal_and_padding_are_the_masks_of_its_equations(wrap):
    block, x = block_of(wrap), normal(1, 5, 8)
    keep = torch.tensor([[False, True, True, True, True]])

    def sees(i, j):
        return j <= i and j > 0

    with torch.no_grad():
        want = readings.encoder_block(block, x[0], pre=wrap is PreNorm, sees=sees)
    got = block(x, mask=masks.padding(keep), causal=True).output[0]
    torch.testing.assert_close(got[1:], want[1:], rtol=1e-8, atol=1e-8)
    assert got[0].isfinite().all()


def test_an_attention_that_sees_nothing_leaves_the_stream():
    """The first position sees no key: its attention adds 0, bias of the projection included."""
    block, x = block_of(PreNorm), normal(1, 3, 8)
    keep = torch.tensor([[False, True, True]])
    blocked = block(x, mask=masks.padding(keep), causal=True)
    want = x[:, :1] + block.feed_forward.part(block.feed_forward.norm(x[:, :1]))
    torch.testing.assert_close(blocked.output[:, :1], want)


@pytest.mark.parametrize(
    "attention",
    [DotProduct, Luong, lambda: Luong(window=LocalPredictive(8))],
    ids=["dot_product", "luong_dot", "luong_dot_with_a_learned_window"],
)
def test_unprojected_self_attention_is_warned_of(attention):
    with pytest.warns(NearIdentityWarning, match="nearly the identity") as caught:
        block_of(PreNorm, attention())
    assert len(caught) == 1
    assert "MultiHead(width, n_heads) projects" in str(caught[0].message)


@pytest.mark.parametrize(
    "attention",
    [MultiHead(8, 2), Additive(8, 8, width=4), Luong(GeneralScore(8, 8))],
    ids=["multi_head", "additive", "general"],
)
def test_projected_self_attention_is_not_warned_of(attention):
    block_of(PreNorm, attention)  # a warning would be an error


@pytest.mark.filterwarnings("ignore::regard.blocks.NearIdentityWarning")
@pytest.mark.parametrize("width", [3, 8, 64])
def test_unprojected_attention_scales_by_the_true_width(width):
    block, x = block_of(PostNorm, DotProduct(), width), normal(1, 4, width)
    weights = block(x, weights=True).attentions["self"].weights[0, 0]
    for i in range(4):
        powers = [math.exp(float(x[0, i] @ x[0, j]) / math.sqrt(width)) for j in range(4)]
        want = torch.tensor([power / sum(powers) for power in powers], dtype=torch.float64)
        torch.testing.assert_close(weights[i], want, rtol=1e-8, atol=1e-8)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::regard.blocks.NearIdentityWarning")
def test_what_the_warning_says_is_so():
    """At width 512, after a norm, a position's weight with itself is 1 to six digits."""
    block = EncoderBlock(PreNorm(512, DotProduct()), PreNorm(512, FeedForward(512, 8))).eval()
    weights = block(torch.randn(2, 32, 512), weights=True).attentions["self"].weights
    assert float(weights.diagonal(dim1=-2, dim2=-1).min()) > 0.999999
    projected = EncoderBlock(PreNorm(512, MultiHead(512, 8)), PreNorm(512, FeedForward(512, 8)))
    weights = projected.eval()(torch.randn(2, 32, 512), weights=True).attentions["self"].weights
    assert float(weights.diagonal(dim1=-2, dim2=-1).mean()) < 0.5


def test_the_context_of_another_width_is_joined_by_concatenation_only():
    block = block_of(PreNorm, MultiHead(8, 2), join=ConcatProjection(8, 5))
    with pytest.raises(ShapeError, match="ConcatProjection: answer: axis width has size 8, exp"):
        block(normal(1, 3, 8))


def test_parts_may_be_any_module():
    gated = nn.Sequential(nn.Linear(8, 16), nn.GLU(-1))
    block = EncoderBlock(
        PreNorm(8, MultiHead(8, 2), norm=nn.RMSNorm(8)), PreNorm(8, gated, norm=nn.Identity())
    )
    assert block(torch.randn(2, 3, 8)).output.shape == (2, 3, 8)


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_dropout_is_drawn_in_training_only(rate):
    block = EncoderBlock(
        PreNorm(8, MultiHead(8, 2, dropout=rate), join=Residual(rate)),
        PreNorm(8, FeedForward(8, dropout=rate), join=Residual(rate)),
    )
    x = torch.randn(2, 3, 8)
    assert torch.equal(block(x).output, block(x).output) == (rate == 0)
    block.eval()
    assert torch.equal(block(x).output, block(x).output)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            lambda: (MultiHead(8, 2), PreNorm(8, FeedForward(8))),
            "EncoderBlock: self_attention is MultiHead, expected a sub-layer: PreNorm(width, part)",
        ),
        (
            lambda: (PreNorm(8, nn.MultiheadAttention(8, 2)), PreNorm(8, FeedForward(8))),
            "the part of self_attention is MultiheadAttention, expected a regard.Mechanism",
        ),
        (
            lambda: (PreNorm(8, MultiHead(8, 2)), PreNorm(8, MultiHead(8, 2))),
            "the part of feed_forward is MultiHead, expected a module on features",
        ),
        (
            lambda: (PreNorm(8, MultiHead(8, 2)), PreNorm(6, FeedForward(6))),
            "EncoderBlock: sub-layers of different width: self_attention 8, feed_forward 6",
        ),
    ],
    ids=["bare", "stranger", "two_attentions", "widths"],
)
def test_wrong_parts_are_refused(parts, text, without_shape_checks):
    with pytest.raises(RegardError, match=re.escape(text)):
        EncoderBlock(*parts())


def test_wrong_inputs_are_named():
    block, x = block_of(PreNorm), normal(2, 3, 8)
    cases = {
        "EncoderBlock: x has 2 axes (3, 8), expected 3: (batch, position, width)": {"x": x[0]},
        "EncoderBlock: x: axis width has size 7, expected 8": {"x": x[..., 1:]},
        "EncoderBlock: x is torch.int64, expected floating point": {"x": x.long()},
        "EncoderBlock: x is torch.float32, the parameters are torch.float64": {"x": x.float()},
        "EncoderBlock: context was given, but nothing here attends to a context": {
            "x": x,
            "context": x,
        },
        "EncoderBlock: mask: masks.padding: axis key has size 4, expected 3": {
            "x": x,
            "mask": masks.padding(torch.ones(2, 4, dtype=torch.bool)),
        },
    }
    for text, arguments in cases.items():
        with pytest.raises(RegardError, match=re.escape(text)):
            block(**arguments)


def test_a_wrong_state_is_named():
    block, x = block_of(PreNorm), normal(2, 3, 8)
    with pytest.raises(StateError, match=r"EncoderBlock: state is str, expected the .state of"):
        block(x, state="yesterday")
    with pytest.raises(StateError, match=re.escape("state is ['cross'], expected")):
        block(x, state={"cross": None})


def test_autocast_is_left_alone():
    block, x = block_of(PreNorm).float(), torch.randn(2, 3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = block(x.bfloat16()).output
    torch.testing.assert_close(output.float(), block(x).output, rtol=0.1, atol=0.1)
