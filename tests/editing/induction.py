"""A hand-built model of two attention layers that continues what repeats (induction)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, PLACES = 20, 40
TOKEN, PLACE = slice(0, WORDS), slice(WORDS, WORDS + PLACES)
PREVIOUS = slice(WORDS + PLACES, 2 * WORDS + PLACES)
ANSWER = slice(2 * WORDS + PLACES, 3 * WORDS + PLACES)
WIDTH, HEAD = 3 * WORDS + PLACES, PLACES


class Heads(nn.Module):
    """Two heads: the first is built, the second is noise that writes a little."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.num_heads, self.fused = 2, fused
        self.query, self.key, self.value = (
            nn.Linear(WIDTH, 2 * HEAD, bias=False) for _ in range(3)
        )
        self.output = nn.Linear(2 * HEAD, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (2, HEAD)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        else:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = torch.einsum("bhqd,bhkd->bkhq", q, k)  # keys before heads and queries
            scores = scores.masked_fill(later.mT[None, :, None], -torch.inf)
            mixed = torch.einsum("bkhq,bhkd->bhqd", scores.softmax(1), v)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Induction(nn.Module):
    """Layer 0 copies the previous token, layer 1 looks for it and copies what followed."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Heads(fused) for _ in range(2)])
        noise = torch.Generator().manual_seed(0)
        first, second = self.layers
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            for place in range(PLACES):
                first.query.weight[max(place - 1, 0), PLACE.start + place] = 30
                first.key.weight[place, PLACE.start + place] = 1
            first.value.weight[:WORDS, TOKEN] = torch.eye(WORDS)
            first.output.weight[PREVIOUS, :WORDS] = torch.eye(WORDS)
            second.query.weight[:WORDS, TOKEN] = 30 * torch.eye(WORDS)
            second.key.weight[:WORDS, PREVIOUS] = torch.eye(WORDS)
            second.value.weight[:WORDS, TOKEN] = torch.eye(WORDS)
            second.output.weight[ANSWER, :WORDS] = torch.eye(WORDS)
            for layer in self.layers:
                for part, size in ((layer.query, 0.2), (layer.key, 0.2), (layer.value, 0.02)):
                    part.weight[HEAD:] = torch.randn(HEAD, WIDTH, generator=noise) * size
                written = torch.randn(WORDS, HEAD, generator=noise) * 0.02
                layer.output.weight[ANSWER, HEAD:] = written

    def forward(self, words: Tensor) -> Tensor:
        x = torch.zeros(*words.shape, WIDTH)
        x[..., TOKEN] = F.one_hot(words, WORDS).float()
        x[..., PLACE] = torch.eye(PLACES)[: words.shape[1]]
        for layer in self.layers:
            x = x + layer(x)
        return x[..., ANSWER]


def repeated(half: int = 18) -> Tensor:
    """Texts of different words, each of them twice in a row."""
    order = torch.Generator().manual_seed(1)
    texts = torch.stack([torch.randperm(WORDS, generator=order)[:half] for _ in range(32)])
    return torch.cat([texts, texts], 1)


def accuracy(model: nn.Module, words: Tensor) -> float:
    """How often the second half is continued as the first one was."""
    half = words.shape[1] // 2
    with torch.no_grad():
        guesses = model(words).argmax(-1)
    return (guesses[:, half:-1] == words[:, half + 1 :]).float().mean().item()
