"""Vision transformers."""

from __future__ import annotations

from typing import Any

import torch

from .target import Target
from .truth import each


def vit(module: str, name: str, image: tuple[int, ...], **settings: Any):
    def build():
        from torchvision_stub import imported

        model = getattr(imported(f"vit_pytorch.{module}"), name)(**settings)
        return model, (torch.randn(2, 3, *image),), {}

    return build


SMALL = {"num_classes": 11, "dim": 32, "depth": 3, "heads": 4, "mlp_dim": 48, "dim_head": 6}

VIT = "vit-pytorch"
TARGETS = [
    Target(
        "ViT", VIT, vit("vit", "ViT", (32, 32), image_size=32, patch_size=8, **SMALL),
        each("b h q k -> b h q k"), "self", quick=True,
    ),
]  # fmt: skip
