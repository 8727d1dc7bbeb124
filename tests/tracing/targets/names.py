"""Attention beside modules that are only named after it: no note may complain about those."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D = 2, 3, 7, 24


class GateAddNorm(nn.Module):
    """Of pytorch-forecasting: stands behind attention, and is called after it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.norm = nn.Linear(D, 2 * D), nn.LayerNorm(D)

    def forward(self, x, skip):
        return self.norm(F.glu(self.gate(x), -1) + skip)


class Gated(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv = H, nn.Linear(D, 3 * D)
        self.post_attn_gate_norm, self.attention_gate = GateAddNorm(), nn.GLU()
        self.attention_norm = nn.LayerNorm(D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def forward(self, x):
        normed = self.attention_norm(x)
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(normed).chunk(3, -1))
        mixed = dense.merged((q @ k.mT * 8**-0.5).softmax(-1) @ v)
        mixed = self.post_attn_gate_norm(mixed, x)
        return self.attention_gate(torch.cat([mixed, x], -1))

    def truth(self, x):
        normed = self.attention_norm(x)
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(normed).chunk(3, -1))
        weights = dense.weights(q, k)
        mixed = self.post_attn_gate_norm(dense.merged(dense.mix(weights, v)), x)
        return [weights], mixed * x.sigmoid()


class AttentionScore(nn.Module):
    """Only the scores: its caller has the softmax and the values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        return dense.heads(self.query(x), H) @ dense.heads(self.key(x), H).mT * 8**-0.5


class Scored(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.attention_score, self.value = H, AttentionScore(), nn.Linear(D, D)

    inputs = staticmethod(Gated.inputs)

    def forward(self, x):
        weights = self.attention_score(x).softmax(-1)
        return dense.merged(weights @ dense.heads(self.value(x), H))

    def truth(self, x):
        score = self.attention_score
        weights = dense.weights(dense.heads(score.query(x), H), dense.heads(score.key(x), H))
        return [weights], dense.merged(dense.mix(weights, dense.heads(self.value(x), H)))


class CoreAttention(nn.Module):
    """Does the work for the module around it."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


class AttentionLayer(nn.Module):
    """Only calls its child."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv, self.core = H, nn.Linear(D, 3 * D), CoreAttention()

    def forward(self, x):
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1))
        return dense.merged(self.core(q, k, v))


class Wrapped(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.attention_layers = nn.ModuleList(AttentionLayer() for _ in range(2))

    inputs = staticmethod(Gated.inputs)

    def forward(self, x):
        for layer in self.attention_layers:
            x = layer(x)
        return x

    def truth(self, x):
        sites = []
        for layer in self.attention_layers:
            q, k, v = (dense.heads(tensor, H) for tensor in layer.qkv(x).chunk(3, -1))
            sites.append(dense.weights(q, k))
            x = dense.merged(dense.mix(sites[-1], v))
        return sites, x


class ScaledDot(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT * 8**-0.5).softmax(-1) @ v


class MultiHeadAttention(formulas.Model):
    """The model itself is called attention, and a child attends."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.qkv, self.inner = H, nn.Linear(D, 3 * D), ScaledDot()

    inputs = staticmethod(Gated.inputs)

    def forward(self, x):
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1))
        return dense.merged(self.inner(q, k, v))

    def truth(self, x):
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1))
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


KINDS = (Gated, Scored, Wrapped, MultiHeadAttention)
TARGETS = [formulas.target(kind, "names") for kind in KINDS]
