"""Mechanisms as layers of an `nn.Sequential`."""

import pytest
import torch
from torch import nn

import regard
from regard.mechanisms import MultiHead
from regard.vision import CBAM, LocalSelfAttention, OutputOnly, SqueezeExcitation


@pytest.mark.parametrize("attention", [SqueezeExcitation, CBAM, LocalSelfAttention])
def test_a_network_takes_the_output_of_what_stands_before(attention):
    attn, image = attention(16).eval(), torch.randn(2, 16, 7, 5)
    network = nn.Sequential(attn, OutputOnly(), nn.ReLU())
    assert torch.equal(network(image), attn(image).output.relu())


def test_any_mechanism_may_stand_before():
    attn, x = MultiHead(16, 2), torch.randn(2, 5, 16)
    assert torch.equal(nn.Sequential(attn, OutputOnly())(x), attn(x).output)


def test_capture_names_the_mechanism():
    network = nn.Sequential(nn.Conv2d(3, 16, 1), LocalSelfAttention(16, 2, size=3), OutputOnly())
    with torch.no_grad(), regard.capture(network) as trace:
        network(torch.randn(2, 3, 7, 5))
    assert trace.names() == ["1"]


def test_a_tensor_is_refused(without_shape_checks):
    with pytest.raises(regard.RegardError) as caught:
        nn.Sequential(nn.ReLU(), OutputOnly())(torch.zeros(1))
    assert str(caught.value) == (
        "OutputOnly: got Tensor, expected an Attended or a BlockOutput: it belongs right behind a "
        "mechanism"
    )
