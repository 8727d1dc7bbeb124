"""Language-model variants by many hands."""

from __future__ import annotations

from typing import Any

import torch

from .target import Target
from .truth import each

XT = "x-transformers"


def x_transformer(**settings: Any):
    def build():
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=6, **settings)
        model = TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers)
        return model, (torch.randint(50, (2, 9)),), {}

    return build


TARGETS = [
    Target("Decoder", XT, x_transformer(), each("b h q k -> b h q k"), "self", quick=True),
]
