"""What every attention over images refuses, and how it says so."""

import pytest
import torch
from torch import nn

from regard.errors import DtypeError, RegardError, ShapeError
from regard.vision import (
    CBAM,
    ChannelGate,
    MeanPooling,
    MultiHeadConvolutional,
    SpatialGate,
    SqueezeExcitation,
)


@pytest.mark.parametrize(
    ("image", "error", "text"),
    [
        (
            torch.randn(16, 4, 4),
            ShapeError,
            "SqueezeExcitation: image has 3 axes (16, 4, 4), expected 4: (batch, channel, height, "
            "width)",
        ),
        (
            torch.randn(2, 8, 4, 4),
            ShapeError,
            "SqueezeExcitation: image: axis channel has size 8, expected 16",
        ),
        (
            torch.randn(2, 16, 0, 4),
            ShapeError,
            "SqueezeExcitation: image: axis height has size 0, expected at least 1",
        ),
        (
            torch.zeros(2, 16, 4, 4, dtype=torch.uint8),
            DtypeError,
            "SqueezeExcitation: image is torch.uint8, expected floating point",
        ),
        (
            torch.zeros(2, 16, 4, 4, dtype=torch.float64),
            DtypeError,
            "SqueezeExcitation: image is torch.float64, the parameters are torch.float32; convert "
            "one, as module.to(torch.float64)",
        ),
    ],
)
def test_wrong_images(image, error, text):
    with pytest.raises(error) as caught:
        SqueezeExcitation(16)(image)
    assert str(caught.value) == text


def test_an_image_without_channels_is_refused():
    with pytest.raises(ShapeError) as caught:
        SpatialGate()(torch.randn(2, 0, 4, 4))
    assert str(caught.value) == "SpatialGate: image: axis channel has size 0, expected at least 1"


@pytest.mark.parametrize("size", [(1, 1), (1, 8), (9, 1)])
def test_tiny_images(size):
    for gate in (SqueezeExcitation(16), SpatialGate().eval()):
        attended = gate(image := torch.randn(3, 16, *size), weights=True)
        assert attended.output.shape == image.shape
        assert attended.output.isfinite().all()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda: SqueezeExcitation(16, gate=nn.Sigmoid),
            "SqueezeExcitation: gate=<class 'torch.nn.modules.activation.Sigmoid'>, expected an "
            "nn.Module, as nn.ReLU()",
        ),
        (
            lambda: SqueezeExcitation(16, activation="relu"),
            "SqueezeExcitation: activation='relu', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: SqueezeExcitation(16, pooling="mean"),
            "SqueezeExcitation: pooling='mean', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: ChannelGate(16, activation="relu"),
            "ChannelGate: activation='relu', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: ChannelGate(16, poolings=[MeanPooling(), "max"]),
            "ChannelGate: poolings[1]='max', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: ChannelGate(16, poolings=MeanPooling()),
            "ChannelGate: poolings=MeanPooling(), expected a list of them",
        ),
        (
            lambda: SpatialGate(norm="batch"),
            "SpatialGate: norm='batch', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: MultiHeadConvolutional(16, gate="sigmoid"),
            "MultiHeadConvolutional: gate='sigmoid', expected an nn.Module, as nn.ReLU()",
        ),
        (
            lambda: CBAM(16, channel=ChannelGate),
            "CBAM: channel=<class 'regard.vision.channel_gate.ChannelGate'>, expected a Gate",
        ),
        (lambda: CBAM(16, spatial=nn.ReLU()), "CBAM: spatial=ReLU(), expected a Gate"),
    ],
)
def test_a_part_of_a_wrong_type_is_told_when_it_is_passed(without_shape_checks, build, text):
    with pytest.raises(RegardError) as caught:
        build()
    assert str(caught.value) == text
