"""A self-attention to edit, and a stack of two."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention, fused or written by hand with an odd order of axes."""

    def __init__(
        self, fused: bool = True, width: int = 16, heads: int = 4, causal: bool = False
    ) -> None:
        super().__init__()
        self.num_heads, self.fused, self.causal = heads, fused, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = torch.einsum("bhqd,bhkd->bkhq", q, k) / q.shape[-1] ** 0.5
            if self.causal:
                future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(-1)  # (k, q)
                scores = scores.masked_fill(future[:, None], torch.finfo(scores.dtype).min)
            mixed = torch.einsum("bkhq,bhkd->bhqd", scores.softmax(1), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


def stack(fused: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Attention(fused), Attention(fused)).eval()


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))
