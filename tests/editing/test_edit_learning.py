"""What an edit learns of a model before its first call: nothing of it stays, and nothing shows."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard.editing import scale


class Attention(nn.Module):
    """Self-attention, fused or written by hand."""

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        self.num_heads, self.fused = 4, fused
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.mT / 2).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def stack(fused: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Attention(fused), Attention(fused)).eval()


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("fused", [True, False])
def test_an_edited_model_can_be_freed(fused: bool) -> None:
    model = stack(fused)
    with torch.no_grad(), regard.edit(model, scale(2.0)) as edits:
        model(X)
    alive = weakref.ref(model)
    del model, edits
    gc.collect()
    assert alive() is None
