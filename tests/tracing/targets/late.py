"""Normalised after the product: the weights themselves are never made.

Keys in chunks are one attention. Queries in chunks are one each, as heads one after another are.
"""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, W = 2, 4, 10, 32, 6  # W: width of a head
LOWEST = -3e38


class Late(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.q, self.kv = H, nn.Linear(D, H * W), nn.Linear(D, 2 * H * W)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def qkv_heads(self, x: Tensor) -> list[Tensor]:
        k, v = self.kv(x).chunk(2, -1)
        return [dense.heads(tensor, H) for tensor in (self.q(x), k, v)]

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class Ones(Late):
    """A column of ones beside the values gives the sum."""

    group = "gaps"

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        powers = (q @ k.mT * W**-0.5).exp()
        mixed = powers @ torch.cat([v, v.new_ones(B, H, N, 1)], -1)
        return dense.merged(mixed[..., :-1] / mixed[..., -1:])


class Reciprocal(Late):
    """Multiplied by the inverse of the sum, after a copy to another order."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * W**-0.5
        powers = torch.exp(scores - scores.max(-1, keepdim=True).values)
        total = torch.einsum("bhij->bhi", powers)
        mixed = torch.einsum("bhij,bhjd->bihd", powers, v)
        return (mixed * total.mT.reciprocal()[..., None]).flatten(2)


class Gated(Late):
    """Features times exponentials of their own, which are not divided by a sum."""

    def gated_heads(self, x: Tensor) -> list[Tensor]:
        return [tensor * torch.exp(-tensor.abs()) for tensor in self.qkv_heads(x)]

    def forward(self, x):
        q, k, v = self.gated_heads(x)
        powers = (q @ k.mT * W**-0.5).exp()
        return dense.merged(powers @ v / powers.sum(-1, keepdim=True))

    def truth(self, x):
        q, k, v = self.gated_heads(x)
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class Chunks(Late):
    """Rabe & Staats 2021: sums, tops and products of every chunk of keys, put together at last."""

    size = 4

    def scores(self, q: Tensor, keys: Tensor, start: int) -> Tensor:
        return torch.einsum("bhid,bhjd->bhij", q * W**-0.5, keys)

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        sums, products, tops = [], [], []
        for index, (keys, values) in enumerate(zip(k.split(self.size, 2), v.split(self.size, 2))):
            scores = self.scores(q, keys, index * self.size)
            top = scores.amax(-1, keepdim=True)
            powers = (scores - top).exp()
            products.append(torch.einsum("bhij,bhjd->bhid", powers, values))
            sums.append(powers.sum(-1))
            tops.append(top[..., 0])
        tops, sums, products = (torch.stack(chunks, -1) for chunks in (tops, sums, products))
        factor = (tops - tops.amax(-1, keepdim=True)).exp()
        total, mixed = (sums * factor).sum(-1), (products * factor[..., None, :]).sum(-1)
        return (mixed / (total[..., None] + 1e-8)).transpose(1, 2).reshape(B, N, -1)


class OneChunk(Chunks):
    size = N


class CausalChunks(Chunks):
    """Rows of a chunk without any key they may see have powers of 1, and a factor of 0."""

    def scores(self, q, keys, start):
        scores = super().scores(q, keys, start)
        later = start + torch.arange(scores.shape[-1]) > torch.arange(N)[:, None]
        return scores.masked_fill(later, LOWEST)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        weights = dense.weights(q, k, allowed=torch.ones(N, N, dtype=torch.bool).tril())
        return [weights], dense.merged(dense.mix(weights, v))


class TiledFunction(torch.autograd.Function):
    """FlashAttention by hand, ring attention: slices of buffers are written in place."""

    @staticmethod
    def forward(ctx, q, k, v, rows, columns):
        ctx.save_for_backward(q, k, v)
        out = torch.zeros_like(q)
        sums, tops = torch.zeros(B, H, N, 1), torch.full((B, H, N, 1), LOWEST)
        for queries, o, total, top in zip(*(t.split(rows, 2) for t in (q, out, sums, tops))):
            for keys, values in zip(k.split(columns, 2), v.split(columns, 2)):
                scores = torch.einsum("...id,...jd->...ij", queries, keys) * W**-0.5
                higher = torch.maximum(scores.amax(-1, keepdim=True), top)
                powers, factor = torch.exp(scores - higher), torch.exp(top - higher)
                o.mul_(factor).add_(torch.einsum("...ij,...jd->...id", powers, values))
                total.copy_(factor * total + powers.sum(-1, keepdim=True).clamp(min=1e-10))
                top.copy_(higher)
            o.div_(total)
        return out

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            q, k, v = projected = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            mixed = (q @ k.mT * W**-0.5).softmax(-1) @ v
        return *torch.autograd.grad(mixed, projected, grad), None, None


class OneTile(Late):
    rows, columns = N, N

    def forward(self, x):
        mixed = TiledFunction.apply(*self.qkv_heads(x), self.rows, self.columns)
        return mixed.transpose(1, 2).reshape(B, N, -1)


class TilesOfKeys(OneTile):
    group = "gaps"
    columns = 3


class Tiles(OneTile):
    group = "gaps"
    rows, columns = 4, 3

    def truth(self, x):
        (weights,), output = super().truth(x)
        return list(weights.split(4, 2)), output


class HeadsInside(Late):
    """Rabe & Staats 2021 in their own layout: scores (batch, query, head, key)."""

    def forward(self, x):
        q, k, v = (tensor.transpose(1, 2) for tensor in self.qkv_heads(x))
        parts = []
        for keys, values in zip(k.split(4, 1), v.split(4, 1)):
            scores = torch.einsum("bqhd,bkhd->bqhk", q, keys) * W**-0.5
            top = scores.amax(-1, keepdim=True)
            powers = (scores - top).exp()
            mixed = torch.einsum("bkhd,bqhk->bqhd", values, powers)
            parts.append((mixed, powers.sum(-1), top.squeeze(-1)))
        mixed, total, top = (torch.stack(part) for part in zip(*parts))
        factor = (top - top.amax(0, keepdim=True)).exp()
        mixed = (mixed * factor[..., None]).sum(0) / (total * factor).sum(0)[..., None]
        return mixed.flatten(2)


class MaximumOfEach(Late):
    """H-Transformer-1D (Zhu & Soricut 2021): parts with a maximum each, and none in common."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        mixed, total = 0.0, 0.0
        for keys, values in zip(k.split(5, 2), v.split(5, 2)):
            scores = q @ keys.mT * W**-0.5
            powers = (scores - scores.amax(-1, keepdim=True)).exp()
            mixed, total = mixed + powers @ values, total + powers.sum(-1, keepdim=True)
        return dense.merged(mixed / total)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        scores = (q @ k.mT * W**-0.5).split(5, -1)
        powers = torch.cat([(part - part.amax(-1, keepdim=True)).exp() for part in scores], -1)
        weights = powers / powers.sum(-1, keepdim=True)
        return [weights], dense.merged(dense.mix(weights, v))


KINDS = (
    *(HeadsInside, MaximumOfEach, Ones, Reciprocal, Gated, OneChunk, Chunks, CausalChunks),
    *(OneTile, TilesOfKeys, Tiles),
)
TARGETS = [formulas.target(kind, "late") for kind in KINDS]
