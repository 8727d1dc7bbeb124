"""Weights that are mixed over heads, or picked, between the softmax and the values.

What meets the values is recorded. Sums over keys are not 1 there, and weights may be negative.
"""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, W = 2, 4, 9, 32, 6  # W: width of a head


class Mixed(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = H, nn.Linear(D, 3 * H * W, bias=False)
        self.convolution = nn.Conv2d(H, H, 1, bias=False)
        self.biased, self.before = nn.Conv2d(H, H, 1), nn.Conv2d(H, H, 1)
        self.mixing, self.norm = nn.Parameter(torch.randn(H, H)), nn.LayerNorm(H)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def qkv_heads(self, x: Tensor) -> list[Tensor]:
        return [dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1)]

    def change(self, weights: Tensor) -> Tensor:
        """Of the float64 softmax, for the truth."""
        return weights

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        weights = self.change(dense.weights(q, k))
        return [weights], dense.merged(dense.mix(weights, v))


def _over_heads(convolution: nn.Conv2d, weights: Tensor) -> Tensor:
    """A 1 × 1 convolution, as a sum."""
    mixed = torch.einsum("bhij,gh->bgij", weights, convolution.weight[:, :, 0, 0])
    return mixed if convolution.bias is None else mixed + convolution.bias[:, None, None]


class Convolved(Mixed):
    """Talking heads by a 1 × 1 convolution (x-transformers)."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = self.convolution((q @ k.mT * W**-0.5).softmax(-1))
        return (weights @ v).transpose(1, 2).reshape(B, N, -1)

    def change(self, weights):
        return _over_heads(self.convolution, weights)


class ConvolvedWithBias(Mixed):
    """EfficientFormerV2."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = self.biased((q @ k.mT * W**-0.5).softmax(-1))
        return (weights @ v).transpose(1, 2).reshape(B, N, -1)

    def change(self, weights):
        return _over_heads(self.biased, weights)


class ConvolvedTwice(Mixed):
    """Before the softmax as well: scores are mixed over heads."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = self.before(q @ k.mT * W**-0.5).softmax(-1)
        return (self.convolution(weights) @ v).transpose(1, 2).reshape(B, N, -1)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * W**-0.5
        weights = dense.softmax(_over_heads(self.before, scores))
        weights = _over_heads(self.convolution, weights)
        return [weights], dense.merged(dense.mix(weights, v))


class Reattention(Mixed):
    """DeepViT (Zhou et al. 2021): mixed over heads, then normalised over them."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = (q @ k.mT * W**-0.5).softmax(-1)
        mixed = torch.einsum("bhij,hg->bgij", weights, self.mixing)
        mixed = self.norm(mixed.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return torch.einsum("bhij,bhjd->bhid", mixed, v).transpose(1, 2).reshape(B, N, -1)

    def change(self, weights):
        mixed = sum(weights[:, h, None] * self.mixing[h][:, None, None] for h in range(H))
        centred = mixed - mixed.mean(1, keepdim=True)
        scale = (centred.square().mean(1, keepdim=True) + self.norm.eps).sqrt()
        return centred / scale  # the weight of the norm is 1, its bias 0


class Differential(Mixed):
    """Ye et al. 2024: two halves of one softmax, subtracted."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = (q @ k.mT * W**-0.5).softmax(-1).view(B, H // 2, 2, N, N)
        weights = weights[:, :, 0] - 0.5 * weights[:, :, 1]
        values = v.transpose(1, 2).reshape(B, N, H // 2, 2 * W).transpose(1, 2)
        return (weights @ values).transpose(1, 2).reshape(B, N, -1)

    def truth(self, x):
        q, k, _ = self.qkv_heads(x)
        pairs = dense.weights(q, k)
        weights = pairs[:, 0::2] - 0.5 * pairs[:, 1::2]
        values = dense.heads(self.qkv(x).chunk(3, -1)[2], H // 2)
        return [weights], dense.merged(dense.mix(weights, values))


class TwoSoftmaxes(Mixed):
    """The same, of two softmaxes: queries and keys are halves of their features."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        first, second = (
            (a @ b.mT * W**-0.5).softmax(-1) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1))
        )
        return ((first - 0.5 * second) @ v).transpose(1, 2).reshape(B, N, -1)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        halves = zip(q.chunk(2, -1), k.chunk(2, -1))
        first, second = (dense.weights(a, b, scale=W**-0.5) for a, b in halves)
        weights = first - 0.5 * second
        return [weights], dense.merged(dense.mix(weights, v))


class Sampled(Mixed):
    """ATS (Fayyaz et al. 2022): only the rows of some queries are kept."""

    def forward(self, x):
        q, k, v = self.qkv_heads(x)
        weights = (q @ k.mT * W**-0.5).softmax(-1)
        best = (weights[..., 0, :] * v.norm(dim=-1)).sum(1).topk(7).indices
        rows = weights.gather(2, best[:, None, :, None].expand(B, H, 7, N))
        return (rows @ v).transpose(1, 2).reshape(B, 7, -1)

    def truth(self, x):
        q, k, v = self.qkv_heads(x)
        weights = dense.weights(q, k)
        worth = (weights[:, :, 0] * v.norm(dim=-1)).sum(1)
        best = worth.argsort(-1, descending=True)[:, :7]
        rows = torch.stack([weights[example, :, best[example]] for example in range(B)])
        return [rows], dense.merged(dense.mix(rows, v))


KINDS = (
    Convolved,
    ConvolvedWithBias,
    ConvolvedTwice,
    Reattention,
    Differential,
    TwoSoftmaxes,
    Sampled,
)
TARGETS = [formulas.target(kind, "mixed_heads") for kind in KINDS]
