"""What every attention over images refuses, and how it says so."""

import pytest
import torch

from regard.errors import DtypeError, ShapeError
from regard.vision import SpatialGate, SqueezeExcitation


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
