"""Torch's own transformer layers, given the same weights, are an independent truth."""

import pytest
import torch
from torch import nn

from regard import RegardError, masks
from regard.blocks import DecoderBlock, EncoderBlock

FIRST = pytest.mark.parametrize("first", [False, True], ids=["post_norm", "pre_norm"])
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["f32", "f64"]
)


def theirs(kind, first, dtype=torch.float32, **options):
    """A layer whose every parameter is drawn anew: torch's biases start at 0 and norms at 1."""
    torch.manual_seed(0)
    layer = kind(16, 4, 32, norm_first=first, batch_first=True, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    return layer.to(dtype).eval()


@FIRST
@DTYPES
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.SiLU()], ids=str)
def test_encoder_layer(first, dtype, tolerance, activation):
    layer = theirs(nn.TransformerEncoderLayer, first, dtype, activation=activation)
    block, x = EncoderBlock.from_torch(layer), torch.randn(3, 6, 16, dtype=dtype)
    hidden = torch.arange(6) >= torch.tensor([6, 4, 1])[:, None]
    want = layer(x, src_key_padding_mask=hidden)
    got = block(x, mask=masks.padding(~hidden)).output
    torch.testing.assert_close(got[~hidden], want[~hidden], rtol=0, atol=tolerance)
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    want = layer(x, src_mask=future, src_key_padding_mask=hidden)
    got = block(x, mask=masks.padding(~hidden), causal=True).output
    torch.testing.assert_close(got[~hidden], want[~hidden], rtol=0, atol=tolerance)


@FIRST
@DTYPES
def test_decoder_layer(first, dtype, tolerance):
    layer = theirs(nn.TransformerDecoderLayer, first, dtype)
    block = DecoderBlock.from_torch(layer)
    x, context = torch.randn(3, 5, 16, dtype=dtype), torch.randn(3, 7, 16, dtype=dtype)
    hidden = torch.arange(7) >= torch.tensor([7, 3, 1])[:, None]
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    want = layer(x, context, tgt_mask=future, memory_key_padding_mask=hidden)
    got = block(x, context, context_mask=masks.padding(~hidden)).output
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    open_want, open_got = layer(x, context), block(x, context, causal=False).output
    torch.testing.assert_close(open_got, open_want, rtol=0, atol=tolerance)


@FIRST
def test_gradients_are_theirs(first):
    layer = theirs(nn.TransformerDecoderLayer, first, torch.float64, dropout=0.0).train()
    block = DecoderBlock.from_torch(layer)
    x, context = (torch.randn(2, n, 16, dtype=torch.float64, requires_grad=True) for n in (4, 6))
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    losses = (layer(x, context, tgt_mask=future), block(x, context).output)
    want, got = (torch.autograd.grad(loss.square().sum(), (x, context)) for loss in losses)
    torch.testing.assert_close(got, want)


def test_options_are_carried_over():
    layer = theirs(nn.TransformerEncoderLayer, False, dropout=0.3, layer_norm_eps=0.1, bias=False)
    block = EncoderBlock.from_torch(layer.train())
    assert block.training and block.self_attention.norm.eps == 0.1
    assert block.self_attention.part.dropout == block.self_attention.join.dropout.p == 0.3
    assert block.feed_forward.part.dropout.p == block.feed_forward.join.dropout.p == 0.3
    assert all("bias" not in name for name, _ in block.named_parameters())
    x = torch.randn(2, 3, 16)
    torch.testing.assert_close(block.eval()(x).output, layer.eval()(x), rtol=0, atol=1e-6)


def test_weights_are_copied_and_not_shared():
    layer = theirs(nn.TransformerEncoderLayer, True)
    block, x = EncoderBlock.from_torch(layer), torch.randn(1, 3, 16)
    before = block(x).output
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert torch.equal(block(x).output, before)


def test_what_cannot_be_converted_is_named(without_shape_checks):
    text = "EncoderBlock.from_torch: TransformerDecoderLayer, expected nn.TransformerEncoderLayer"
    with pytest.raises(RegardError, match=text):
        EncoderBlock.from_torch(theirs(nn.TransformerDecoderLayer, True))
    with pytest.raises(RegardError, match=r"DecoderBlock.from_torch: Linear, expected"):
        DecoderBlock.from_torch(nn.Linear(2, 2))
    layer = theirs(nn.TransformerEncoderLayer, True, activation=torch.tanh)
    with pytest.raises(RegardError, match="expected relu, gelu or a module"):
        EncoderBlock.from_torch(layer)
