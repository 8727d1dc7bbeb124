"""Attention whose weights are normalised late, twice, or over edges, or put together."""

import torch
from torch import nn

from . import Case, Target, dense

B, H, N, D = 2, 4, 5, 16


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.slots = nn.Linear(D, 3 * D), nn.Parameter(torch.randn(3, D))

    def heads(self, x):
        return self.qkv(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)


class Late(Projected):
    """The sum of the exponentials divides the output: the weights themselves are never made."""

    def forward(self, x):
        q, k, v = self.heads(x)
        powers = torch.exp(q @ k.mT / 2)
        return (powers @ v) / powers.sum(-1, keepdim=True)


class LateSum(Projected):
    """The same, place by place: no product of matrices."""

    def forward(self, x):
        q, k, v = self.heads(x)
        powers = torch.exp(q @ k.mT / 2)
        return (powers[..., None] * v[:, :, None]).sum(3) / powers.sum(-1, keepdim=True)


class Online(Projected):
    """Keys in blocks, with a running maximum and sum (Milakov & Gimelshein 2018)."""

    def forward(self, x):
        q, k, v = self.heads(x)
        top = torch.full((*q.shape[:-1], 1), -torch.inf)
        total, output = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(2, 2), v.split(2, 2)):
            scores = q @ keys.mT / 2
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            powers, shrink = (scores - higher).exp(), (top - higher).exp()
            total = total * shrink + powers.sum(-1, keepdim=True)
            output, top = output * shrink + powers @ values, higher
        return output / total


@torch.no_grad()
def _heads(kind: type[Projected]) -> Case:
    model, x = kind(), torch.randn(B, N, D)
    q, k, v = model.heads(x)
    weights = dense.weights(q, k)
    return Case(model, (x,), {}, [weights], dense.mix(weights, v).float())


class Slots(Projected):
    """Locatello et al. 2020: slots compete for positions, then a mean over the positions."""

    def forward(self, x):
        shares = (x @ self.slots.mT / D**0.5).softmax(-1)  # (batch, position, slot)
        return torch.einsum("bns,bnd->bsd", shares / shares.sum(1, keepdim=True), x)


@torch.no_grad()
def _slots() -> Case:
    model, x = Slots(), torch.randn(B, N, D)
    shares = dense.softmax((x.double() @ model.slots.double().mT) / D**0.5)
    weights = (shares / shares.sum(1, keepdim=True)).mT[:, None]
    return Case(model, (x,), {}, [weights], dense.mix(weights, x[:, None])[:, 0].float())


class Edges(Projected):
    """Graph attention over a list of edges: the softmax runs by scatter, and no axis holds it."""

    def forward(self, x, source, target):
        x = self.qkv(x)[:, :D]
        powers = (x[source] * x[target]).sum(-1).div(4).exp()
        total = torch.zeros(len(x)).index_add(0, target, powers)
        weights = powers / total[target]
        return torch.zeros_like(x).index_add(0, target, weights[:, None] * x[source])


@torch.no_grad()
def _edges() -> Case:
    model, x = Edges(), torch.randn(N, D)
    source, target = torch.tensor([0, 1, 2, 3, 4, 0, 2]), torch.tensor([1, 1, 3, 3, 0, 4, 2])
    allowed = torch.zeros(N, N, dtype=torch.bool)
    allowed[target, source] = True
    nodes = model.qkv(x)[None, None, :, :D]
    weights = dense.weights(nodes, nodes, allowed=allowed)
    expected = dense.mix(weights, nodes)[0, 0].float()
    return Case(model, (x, source, target), {}, [weights], expected)


class Stacked(Projected):
    """Weights of one head after the other, put together before they are used."""

    def forward(self, x):
        q, k, v = self.heads(x)
        weights = [(q[:, h] @ k[:, h].mT / 2).softmax(-1) for h in range(H)]
        return torch.stack(weights, 1) @ v


TARGETS = [
    Target(f"unusual_{kind.__name__.lower()}", "normalised", build)
    for kind, build in (
        (Late, lambda: _heads(Late)),
        (LateSum, lambda: _heads(LateSum)),
        (Online, lambda: _heads(Online)),
        (Stacked, lambda: _heads(Stacked)),
        (Slots, _slots),
        (Edges, _edges),
    )
]
