"""Squeeze-and-excitation: the equation in plain loops, the paper's figures, timm's weights."""

import copy
import math

import pytest
import torch
from torch import nn

from regard import RegardError
from regard.vision import MaxPooling, SqueezeExcitation

#: Output channels of the 16 blocks of ResNet-50, and the parameters of the network itself.
RESNET_50 = [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
BASE = 25_557_032


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def images(channels, height=4, width=3, batch=2):
    return torch.randn(batch, channels, height, width, dtype=torch.float64)


def plain(image, first, first_bias, second, second_bias):
    """The paper's equations 2 to 4, number by number: the output, and s."""
    batch, channels, height, width = image.shape
    output, gates = torch.zeros_like(image), torch.zeros(batch, channels, dtype=image.dtype)
    for b in range(batch):
        squeezed = []
        for c in range(channels):
            total = 0.0
            for i in range(height):
                for j in range(width):
                    total += float(image[b, c, i, j])
            squeezed.append(total / (height * width))
        hidden = []
        for row, offset in zip(first.tolist(), first_bias.tolist()):
            hidden.append(max(0.0, offset + sum(w * z for w, z in zip(row, squeezed))))
        for c, (row, offset) in enumerate(zip(second.tolist(), second_bias.tolist())):
            score = offset + sum(w * h for w, h in zip(row, hidden))
            gates[b, c] = 1 / (1 + math.exp(-score))
            for i in range(height):
                for j in range(width):
                    output[b, c, i, j] = gates[b, c] * image[b, c, i, j]
    return output, gates


def test_equals_the_equations_in_plain_loops():
    torch.manual_seed(0)
    module, image = SqueezeExcitation(6, reduction=2).double(), images(6)
    narrow, widen = module.excitation.narrow, module.excitation.widen
    output, gates = plain(
        image, narrow.weight[:, :, 0, 0], narrow.bias, widen.weight[:, :, 0, 0], widen.bias
    )
    attended = module(image, weights=True)
    torch.testing.assert_close(attended.output, output, atol=1e-12, rtol=0)
    torch.testing.assert_close(attended.weights[:, 0, 0], gates, atol=1e-12, rtol=0)


def test_parameters_added_to_resnet_50():
    weights = sum(count(SqueezeExcitation(width, bias=False)) for width in RESNET_50)
    with_biases = sum(count(SqueezeExcitation(width)) for width in RESNET_50)
    assert (weights, with_biases, BASE + with_biases) == (2_514_944, 2_530_992, 28_088_024)


def test_the_base_is_resnet_50(timm):
    with torch.device("meta"):
        assert count(timm.create_model("resnet50")) == BASE


def test_zero_weights_halve_the_image():
    module, image = SqueezeExcitation(16), images(16).float()
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    attended = module(image, weights=True)
    assert torch.equal(attended.output, image / 2)
    assert (attended.weights == 0.5).all()


def test_the_gate_does_not_see_where_numbers_stand():
    torch.manual_seed(0)
    module, image = SqueezeExcitation(16).double(), images(16)
    order = torch.randperm(12)
    moved = image.flatten(2)[..., order].reshape(image.shape)
    before, after = (module(x, weights=True).weights for x in (image, moved))
    torch.testing.assert_close(after, before, atol=1e-15, rtol=1e-12)
    flipped = module(image.flip(1), weights=True).weights
    assert not torch.allclose(flipped, before)


def test_parts_take_the_place_of_pooling_activation_and_gate():
    torch.manual_seed(0)
    parts = {"pooling": MaxPooling(), "activation": nn.SiLU(), "gate": nn.Hardsigmoid()}
    module, image = SqueezeExcitation(6, hidden=4, **parts).double(), images(6)
    pooled = image.flatten(2).max(2).values
    narrow, widen = module.excitation.narrow, module.excitation.widen
    hidden = nn.functional.silu(pooled @ narrow.weight[:, :, 0, 0].T + narrow.bias)
    scores = hidden @ widen.weight[:, :, 0, 0].T + widen.bias
    gates = (scores / 6 + 0.5).clamp(0, 1)
    torch.testing.assert_close(module(image, weights=True).weights[:, 0, 0], gates)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"channels": 8},
            "SqueezeExcitation: channels=8 and reduction=16 leave 0 hidden channels, expected at "
            "least 1: reduction up to 8, or hidden=1",
        ),
        ({"channels": 8, "hidden": 0}, "SqueezeExcitation: hidden=0, expected at least 1"),
        ({"channels": 0}, "SqueezeExcitation: channels=0, expected at least 1"),
        (
            {"channels": 8, "reduction": 0},
            "SqueezeExcitation: reduction=0, expected a number above 0",
        ),
    ],
)
def test_hidden_channels_are_never_none_in_silence(options, text):
    with pytest.raises(RegardError) as caught:
        SqueezeExcitation(**options)
    assert str(caught.value) == text


class TestFromTimm:
    """With weights of the real modules of timm."""

    @pytest.fixture
    def modules(self, timm):
        from timm.models import _efficientnet_blocks, senet

        torch.manual_seed(0)
        return {
            "layers": timm.layers.SEModule(64),
            "layers, other parts": timm.layers.SqueezeExcite(
                *(24,), rd_channels=5, bias=False, act_layer=nn.SiLU, gate_layer="hard_sigmoid"
            ),
            "efficientnet": _efficientnet_blocks.SqueezeExcite(32, act_layer=nn.SiLU),
            "senet": senet.SEModule(64, reduction=16),
        }

    def test_bit_equal(self, modules):
        for name, module in modules.items():
            channels = next(module.parameters()).shape[1]
            image = images(channels, 9, 7).float()
            ours = SqueezeExcitation.from_timm(module)
            assert torch.equal(ours(image).output, module(image)), name
            assert count(ours) == count(module), name

    def test_a_copy_of_ones_own(self, modules):
        module = modules["layers"].bfloat16().eval()
        before = copy.deepcopy(module.state_dict())
        ours = SqueezeExcitation.from_timm(module)
        assert not ours.training and ours.excitation.narrow.weight.dtype == torch.bfloat16
        for parameter in ours.parameters():
            nn.init.zeros_(parameter)
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, before[name])

    def test_inside_a_network(self, timm):
        torch.manual_seed(0)
        model = timm.create_model("mobilenetv3_small_050", num_classes=3).eval()
        image = torch.randn(1, 3, 32, 32)
        with torch.no_grad():
            want, gates = model(image), 0
            for module in list(model.modules()):
                if type(getattr(module, "se", None)).__name__ == "SqueezeExcite":
                    module.se = _Output(SqueezeExcitation.from_timm(module.se))
                    gates += 1
            assert gates > 5
            assert torch.equal(model(image), want)

    @pytest.mark.parametrize(
        ("build", "text"),
        [
            (
                lambda timm: timm.layers.EffectiveSEModule(16),
                "SqueezeExcitation.from_timm: got EffectiveSEModule, expected timm's SEModule or "
                "SqueezeExcite",
            ),
            (
                lambda timm: timm.layers.SEModule(16, add_maxpool=True),
                "SqueezeExcitation.from_timm: add_maxpool=True, expected False: the maximum is no "
                "part of squeeze-and-excitation; pass a pooling of your own and load the two "
                "layers",
            ),
            (
                lambda timm: timm.layers.SEModule(16, norm_layer=nn.BatchNorm2d),
                "SqueezeExcitation.from_timm: bn is BatchNorm2d, expected none: a norm is no part "
                "of squeeze-and-excitation; nn.Sequential(norm, nn.ReLU()) can be its activation",
            ),
        ],
    )
    def test_other_modules_are_refused(self, timm, build, text):
        with pytest.raises(RegardError) as caught:
            SqueezeExcitation.from_timm(build(timm))
        assert str(caught.value) == text


class _Output(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, image):
        return self.gate(image).output


@pytest.mark.usefixtures("without_shape_checks")
def test_a_pooling_that_leaves_positions_is_refused():
    gate = SqueezeExcitation(8, hidden=2, pooling=nn.Identity())
    with pytest.raises(RegardError, match=r"factors are \(1, 8, 4, 4\), expected \(1, 8, 1, 1\)"):
        gate(torch.randn(1, 8, 4, 4))


def test_an_empty_part_is_a_part():
    assert isinstance(
        SqueezeExcitation(16, activation=nn.Sequential()).excitation.activation, nn.Sequential
    )
