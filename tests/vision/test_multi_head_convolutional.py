"""Multi-head convolutional attention: the equation in plain loops, and the paper's figures."""

import pytest
import torch
from torch import nn

from regard import RegardError
from regard.errors import ShapeError
from regard.vision import MultiHeadConvolutional


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def head(image, down, up):
    """One head in plain loops: a convolution without padding, ReLU, its transpose back.

    image is (channel, height, width); down (hidden, channel, k, k) and up (hidden, channel, k, k),
    each with a bias.
    """
    (down, down_bias), (up, up_bias) = down, up
    channels, height, width = image.shape
    n_hidden, _, kernel, _ = down.shape
    scores = up_bias[:, None, None].expand(channels, height, width).clone()
    for i in range(height - kernel + 1):
        for j in range(width - kernel + 1):
            patch = image[:, i : i + kernel, j : j + kernel]
            for h in range(n_hidden):
                hidden = float((down[h] * patch).sum() + down_bias[h])
                if hidden > 0:
                    scores[:, i : i + kernel, j : j + kernel] += hidden * up[h]
    return scores


def test_equals_the_equation_in_plain_loops():
    torch.manual_seed(0)
    module = MultiHeadConvolutional(6, reduction=2).double()
    image = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    attended = module(image, weights=True)
    with torch.no_grad():
        for example in range(2):
            scores = torch.zeros(6, 7, 5, dtype=torch.float64)
            for down, up in zip(module.down, module.up):
                scores += head(image[example], (down.weight, down.bias), (up.weight, up.bias))
            factors = 1 / (1 + (-scores).exp())
            weights = attended.weights[example].reshape(6, 7, 5)
            torch.testing.assert_close(weights, factors, atol=1e-12, rtol=0)
            torch.testing.assert_close(attended.output[example], image[example] * factors)
    assert attended.weights.shape == (2, 6, 1, 35) and attended.recipe.grid == (7, 5)


@pytest.mark.parametrize(("reduction", "parameters"), [(4, 71_920), (0.5, 574_016)])
def test_parameters(reduction, parameters):
    assert count(MultiHeadConvolutional(64, reduction=reduction)) == parameters


def test_zero_weights_halve_the_image():
    module, image = MultiHeadConvolutional(8), torch.randn(2, 8, 5, 9)
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(module(image).output, image / 2)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ((4, 9), "MultiHeadConvolutional: image: axis height has size 4, expected at least 5"),
        ((9, 4), "MultiHeadConvolutional: image: axis width has size 4, expected at least 5"),
    ],
)
def test_images_smaller_than_the_largest_kernel_are_refused(size, text):
    with pytest.raises(ShapeError) as caught:
        MultiHeadConvolutional(8)(torch.randn(2, 8, *size))
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"kernels": ()},
            "MultiHeadConvolutional: kernels=(), expected sizes from 1 on",
        ),
        (
            {"channels": 2},
            "MultiHeadConvolutional: channels=2 and reduction=4 leave 0 hidden channels, expected "
            "at least 1: reduction up to 2, or hidden=1",
        ),
    ],
)
def test_errors(options, text):
    with pytest.raises(RegardError) as caught:
        MultiHeadConvolutional(**{"channels": 8} | options)
    assert str(caught.value) == text
