"""CBAM and its two gates: the equations in plain loops, the paper's figures, timm's weights."""

import math

import pytest
import torch
from torch import nn

from regard import RegardError
from regard.vision import CBAM, ChannelGate, MaxPooling, MeanPooling, SpatialGate

RESNET_50 = [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
BASE = 25_557_032


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def images(channels, height=4, width=5, batch=2):
    return torch.randn(batch, channels, height, width, dtype=torch.float64)


def sigmoid(score):
    return 1 / (1 + math.exp(-score))


def channel_factors(image, first, second):
    """Equation 2 in plain loops; image is (channel, height, width), the layers have no biases."""
    answers = []
    for pool in (lambda numbers: sum(numbers) / len(numbers), max):
        pooled = [pool(channel.flatten().tolist()) for channel in image]
        hidden = [max(0.0, sum(w * z for w, z in zip(row, pooled))) for row in first.tolist()]
        answers.append([sum(w * h for w, h in zip(row, hidden)) for row in second.tolist()])
    return [sigmoid(mean + largest) for mean, largest in zip(*answers)]


def spatial_factors(image, kernel):
    """Equation 3 in plain loops, maximum before mean; kernel is (2, rows, columns)."""
    _, height, width = image.shape
    pooled = [image.max(0).values.tolist(), image.mean(0).tolist()]
    reach, kernel = kernel.shape[1] // 2, kernel.tolist()
    factors = torch.zeros(height, width, dtype=image.dtype)
    for i in range(height):
        for j in range(width):
            score = 0.0
            for which in range(2):
                for di in range(-reach, reach + 1):
                    for dj in range(-reach, reach + 1):
                        if 0 <= i + di < height and 0 <= j + dj < width:
                            weight = kernel[which][di + reach][dj + reach]
                            score += weight * pooled[which][i + di][j + dj]
            factors[i, j] = sigmoid(score)
    return factors


def bare(channels, kernel=3):
    """CBAM as the equations have it: no biases, no norm."""
    return CBAM(
        channels,
        channel=ChannelGate(channels, reduction=2, bias=False),
        spatial=SpatialGate(kernel=kernel, norm=nn.Identity()),
    ).double()


def test_equals_the_equations_in_plain_loops():
    torch.manual_seed(0)
    module, image = bare(6), images(6)
    blocked = module(image, weights=True)
    layers = module.channel.excitation
    for example in range(2):
        channel = channel_factors(
            image[example], layers.narrow.weight[:, :, 0, 0], layers.widen.weight[:, :, 0, 0]
        )
        channel = torch.tensor(channel, dtype=torch.float64)
        gated = image[example] * channel[:, None, None]
        spatial = spatial_factors(gated, module.spatial.convolution.weight[0])
        gates = {
            name: attended.weights[example, 0, 0] for name, attended in blocked.attentions.items()
        }
        torch.testing.assert_close(gates["channel"], channel, atol=1e-12, rtol=0)
        torch.testing.assert_close(gates["spatial"], spatial.flatten(), atol=1e-12, rtol=0)
        torch.testing.assert_close(blocked.output[example], gated * spatial, atol=1e-12, rtol=0)


def test_positions_are_counted_row_by_row():
    torch.manual_seed(0)
    attended = SpatialGate().double().eval()(image := images(3, 4, 7), weights=True)
    assert attended.recipe.grid == (4, 7)
    factors = attended.weights.reshape(2, 1, 4, 7)
    torch.testing.assert_close(attended.output, image * factors, atol=1e-15, rtol=0)


def test_parameters_of_resnet_50():
    gates = sum(count(CBAM(width)) for width in RESNET_50)
    assert BASE + gates == 28_089_624
    assert count(SpatialGate()) == 98 + 2


def test_zero_weights_quarter_the_image():
    """Each gate is 1/2 then."""
    module, image = CBAM(16).eval(), images(16).float()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(module(image).output, image / 4)


def test_the_channel_gate_is_applied_first():
    torch.manual_seed(0)
    module, image = bare(6), images(6)
    with torch.no_grad():
        swapped = module.channel(module.spatial(image).output).output
        assert not torch.allclose(module(image).output, swapped)
        stepwise = module.spatial(module.channel(image).output).output
        assert torch.equal(module(image).output, stepwise)


def test_one_pooling_alone():
    torch.manual_seed(0)
    both = ChannelGate(6, hidden=2).double()
    image, scores = images(6), 0
    for pooling in (MeanPooling(), MaxPooling()):
        single = ChannelGate(6, hidden=2, poolings=[pooling]).double()
        single.load_state_dict(both.state_dict())
        scores = scores + single(image, weights=True).weights.logit()
    torch.testing.assert_close(scores, both(image, weights=True).weights.logit())


def test_statistics_of_the_norm_move_slowly_in_training():
    torch.manual_seed(0)
    module, image = SpatialGate().double(), images(6, batch=3)
    assert module.norm.momentum == 0.01
    pooled = torch.cat([image.amax(1, keepdim=True), image.mean(1, keepdim=True)], 1)
    scores = module.convolution(pooled)
    module(image)
    torch.testing.assert_close(module.norm.running_mean[0], 0.01 * scores.mean())


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: CBAM(8),
            "ChannelGate: channels=8 and reduction=16 leave 0 hidden channels, expected at least "
            "1: reduction up to 8, or hidden=1",
        ),
        (
            lambda: CBAM(32, channel=ChannelGate(16)),
            "CBAM: channel is a gate of 16 channels, expected 32",
        ),
        (lambda: ChannelGate(16, poolings=[]), "ChannelGate: poolings=[], expected at least one"),
        (lambda: SpatialGate(kernel=4), "SpatialGate: kernel=4, expected an odd number"),
        (
            lambda: CBAM.from_timm(nn.Linear(2, 2)),
            "CBAM.from_timm: got Linear, expected timm's CbamModule",
        ),
    ],
)
def test_errors(build, text):
    with pytest.raises(RegardError) as caught:
        build()
    assert str(caught.value) == text


class TestFromTimm:
    """With weights of the real modules of timm."""

    @pytest.mark.parametrize("options", [{}, {"mlp_bias": True, "spatial_kernel_size": 3}])
    def test_equal(self, timm, options):
        from timm.layers.cbam import CbamModule

        torch.manual_seed(0)
        module = CbamModule(64, **options)
        for seed in range(3):  # so that the norm's statistics are not those it starts with
            module(3 * torch.randn(4, 64, 9, 7) + seed)
        ours, image = CBAM.from_timm(module), torch.randn(2, 64, 9, 7)
        assert ours.training and count(ours) == count(module)
        torch.testing.assert_close(ours(image).output, module(image), atol=1e-6, rtol=0)
        module.eval(), ours.eval()
        torch.testing.assert_close(ours(image).output, module(image), atol=1e-6, rtol=0)

    def test_max_and_mean_would_differ_without_the_swap(self, timm):
        from timm.layers.cbam import SpatialAttn

        torch.manual_seed(0)
        module, image = SpatialAttn().eval(), torch.randn(2, 8, 9, 7)
        ours = SpatialGate.from_timm(module)
        ours.convolution.load_state_dict({"weight": module.conv.conv.weight})
        assert not torch.allclose(ours(image).output, module(image), atol=1e-2)

    def test_light_gates_are_refused(self, timm):
        from timm.layers.cbam import LightChannelAttn

        with pytest.raises(RegardError, match="got LightChannelAttn, expected timm's ChannelAttn"):
            ChannelGate.from_timm(LightChannelAttn(16))
