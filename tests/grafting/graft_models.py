"""Small models that grafts are tried on, and what a model is like from outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.grafting import Latents, OutputAttention, ReuseLayer, States, ZeroProjection
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import GatedFlow, WeightedAggregation

WIDTH, HEADS, CLASSES = 8, 2, 3


class Attention(nn.Module):
    """Self-attention, fused or written by hand."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), fused

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        made = self.qkv(x).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, value = made.permute(2, 0, 3, 1, 4)  # each (batch, head, position, width)
        mask = None if keep is None else keep[:, None, None].bool()
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            scores = query @ key.mT * (WIDTH // HEADS) ** -0.5
            if mask is not None:
                scores = scores.masked_fill(~mask, -torch.inf)
            mixed = scores.softmax(-1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.attention, self.feed = Attention(fused), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        x = x + self.attention(x, keep)
        return x + self.feed(x).tanh()


class Small(nn.Module):
    """Three layers, a mean over what is real, a classifier."""

    def __init__(self, fused: bool = True, checkpointing: str = "") -> None:
        super().__init__()
        self.embed = nn.Linear(4, WIDTH)
        self.layers = nn.ModuleList([Layer(fused) for _ in range(3)])
        self.classifier = nn.Linear(WIDTH, CLASSES)
        self.checkpointing, self.checkpointed = checkpointing, range(3)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(x)
        for number, layer in enumerate(self.layers):
            if self.checkpointing and number in self.checkpointed:
                again = self.checkpointing == "reentrant"
                x = checkpoint(layer, x, attention_mask, use_reentrant=again)
            else:
                x = layer(x, attention_mask)
        if attention_mask is None:
            return self.classifier(x.mean(1))
        real = attention_mask[..., None].to(x.dtype)
        return self.classifier((x * real).sum(1) / real.sum(1).clamp_min(1))


def pooling(**changes: str) -> OutputAttention:
    """A pooling query on the second layer, joined to the logits."""
    sites = {"reads": "layers.1", "into": "classifier", "mask": "attention_mask", **changes}
    return OutputAttention(
        DotProduct(), query=Latents(1, WIDTH), join=ZeroProjection(WIDTH, CLASSES), **sites
    )


def decoding(**changes: str) -> OutputAttention:
    """The last layer's positions ask the first layer's."""
    sites = {"reads": "layers.0", "into": "layers.2", "mask": "attention_mask", **changes}
    return OutputAttention(
        MultiHead(WIDTH, HEADS),
        query=States(causal=False),
        join=ZeroProjection(WIDTH, WIDTH),
        **sites,
    )


def reusing(**changes: str) -> ReuseLayer:
    """The first layer's weights mix the last layer's features."""
    sites = {"reads": "layers.0.attention", "into": "layers.2", **changes}
    return ReuseLayer(WeightedAggregation(WIDTH, HEADS), **sites)


def gating(**changes: str) -> ReuseLayer:
    """What the first layer's weights did decides how far the last layer's features pass."""
    sites = {"reads": "layers.0.attention", "into": "layers.2", **changes}
    sites.setdefault("mask", "attention_mask")
    return ReuseLayer(GatedFlow(WIDTH, HEADS), **sites)


PARTS = {"pooling": pooling, "decoding": decoding, "reusing": reusing, "gating": gating}


def wake(part: nn.Module) -> None:
    """Give a part's parameters numbers, as training would."""
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.5)


def batch(padded: bool = True, length: int = 5) -> dict[str, Tensor | None]:
    x = torch.randn(2, length, 4)
    keep = torch.ones(2, length, dtype=torch.long)
    keep[1, -2:] = 0
    return {"x": x, "attention_mask": keep if padded else None}


def outside(model: nn.Module) -> dict[str, object]:
    """What a model is like: everything that grafting must give back."""
    found: dict[str, object] = {"keys": list(model.state_dict())}
    for path, module in model.named_modules():
        found[path] = (
            type(module),
            sorted(module.__dict__),
            list(module._modules),
            list(module._forward_hooks),
            list(module._forward_pre_hooks),
            [
                parameter.requires_grad
                for parameter in module._parameters.values()
                if parameter is not None
            ],
            module.training,
        )
    return found
