"""Generated kernels: the paper's counts, a loop over channels, tiles, and two layers that share."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.errors import RegardError, ShapeError
from regard.memory import GeneratedConv2d, KernelGenerator

SCRIPT = Path(__file__).parents[2] / "experiments" / "mechanisms" / "hypernetwork.py"


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def by_loop(generator, z):
    """Ha et al. 2016, section 3.1: a vector for each input channel, then that channel's kernels."""
    height, width = generator.kernel_size
    kernel = torch.zeros(generator.out_channels, generator.in_channels, height, width)
    first, second = generator.to_rows, generator.to_kernel
    row_width, area = second.in_features, height * width
    for i in range(generator.in_channels):
        rows = slice(i * row_width, (i + 1) * row_width)
        row = first.weight[rows] @ z + first.bias[rows]
        for o in range(generator.out_channels):
            for index in range(area):
                weight = second.weight[o * area + index]
                value = weight @ row + second.bias[o * area + index]
                kernel[o, i, index // width, index % width] = value
    return kernel


def varied(module):
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter)
    return module


def test_few_parameters_make_many():
    generator = KernelGenerator(16, 16, 7, embedding_width=4)
    kernel = generator(torch.randn(4))
    assert (count(generator), kernel.numel()) == (4240, 12544)
    assert count(GeneratedConv2d(generator, 16, 16, bias=False)) == 4244


@torch.no_grad()
@pytest.mark.parametrize("channels", [(3, 3), (2, 5), (4, 1)])
def test_it_is_the_paper_s_generator(channels):
    """Unequal channels too, where a plain reshape would scramble them."""
    generator = varied(KernelGenerator(*channels, (2, 3), embedding_width=4, row_width=3))
    z = torch.randn(4)
    torch.testing.assert_close(generator(z), by_loop(generator, z))


@torch.no_grad()
def test_an_input_channel_has_a_row_of_its_own():
    """Silencing one row of the first layer leaves only the bias of that input channel."""
    generator = varied(KernelGenerator(3, 2, 3))
    width = generator.to_kernel.in_features
    generator.to_rows.weight[width : 2 * width] = 0.0
    generator.to_rows.bias[width : 2 * width] = 0.0
    kernel = generator(torch.randn(4))
    bias = generator.to_kernel.bias.view(2, 3, 3)
    torch.testing.assert_close(kernel[:, 1], bias)
    assert not torch.isclose(kernel[:, 0], bias).any()


@torch.no_grad()
def test_larger_kernels_are_tiles():
    generator = varied(KernelGenerator(2, 3, 3))
    layer = GeneratedConv2d(generator, 4, 9)
    kernel = layer.kernel()
    assert layer.embedding.shape == (3, 2, 4) and kernel.shape == (9, 4, 3, 3)
    for out in range(3):
        for into in range(2):
            tile = kernel[3 * out : 3 * out + 3, 2 * into : 2 * into + 2]
            torch.testing.assert_close(tile, by_loop(generator, layer.embedding[out, into]))


@torch.no_grad()
def test_it_is_a_convolution_with_that_kernel():
    layer = GeneratedConv2d(varied(KernelGenerator(2, 3, (3, 5))), 4, 6, stride=(2, 1))
    x = torch.randn(2, 4, 8, 9)
    plain = nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2))
    plain.weight.copy_(layer.kernel())
    plain.bias.copy_(layer.bias)
    torch.testing.assert_close(layer(x), plain(x))


def test_layers_share_a_generator():
    generator = KernelGenerator(2, 2, 3)
    network = nn.Sequential(GeneratedConv2d(generator, 2, 4), GeneratedConv2d(generator, 4, 2))
    assert count(network) == count(generator) + 2 * 8 + 4 + 2  # embeddings, biases
    varied(network)
    network(torch.randn(1, 2, 5, 5)).square().sum().backward()
    assert all(parameter.grad.any() for parameter in network.parameters())
    other = nn.Sequential(
        *(GeneratedConv2d(KernelGenerator(2, 2, 3), *c) for c in ((2, 4), (4, 2)))
    )
    other.load_state_dict(network.state_dict())
    x = torch.randn(1, 2, 5, 5)
    torch.testing.assert_close(other(x), network(x))


def test_it_starts_small():
    torch.manual_seed(0)
    generator = KernelGenerator(16, 16, 7)
    for linear in (generator.to_rows, generator.to_kernel):
        assert not linear.bias.any() and linear.weight.abs().max() <= 0.02
        assert linear.weight.std().item() == pytest.approx(
            0.0088, rel=0.1
        )  # 0.01, cut at two deviations
    kernel = GeneratedConv2d(generator, 16, 16).kernel()
    assert 5e-5 < kernel.std() < 2e-3


@pytest.mark.usefixtures("without_shape_checks")
def test_what_does_not_fit_is_named():
    generator = KernelGenerator(4, 6, 3)
    with pytest.raises(RegardError, match="out_channels=8, expected a multiple of 6, the channels"):
        GeneratedConv2d(generator, 4, 8)
    with pytest.raises(RegardError, match="in_channels=6, expected a multiple of 4"):
        GeneratedConv2d(generator, 6, 6)
    with pytest.raises(RegardError, match=r"kernel_size=\(3, 0\), expected a whole number from 1"):
        KernelGenerator(4, 6, (3, 0))
    with pytest.raises(RegardError, match="padding=-1, expected a whole number from 0 on, or two"):
        GeneratedConv2d(generator, 4, 6, padding=-1)
    with pytest.raises(ShapeError, match=r"x has 3 axes \(4, 5, 5\), expected 4: \(batch, channel"):
        GeneratedConv2d(generator, 4, 6)(torch.randn(4, 5, 5))
    with pytest.raises(ShapeError, match="x: axis channel has size 5, expected 4"):
        GeneratedConv2d(generator, 4, 6)(torch.randn(1, 5, 5, 5))


@pytest.mark.slow
def test_digits_are_read_as_well_as_with_a_plain_kernel():
    spec = importlib.util.spec_from_file_location("hypernetwork_digits", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    images, labels = script.digits()
    for build in (script.plain, script.generated):
        torch.manual_seed(0)
        assert script.run(build(), images, labels, epochs=20) < 0.06
