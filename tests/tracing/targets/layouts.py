"""Axes in other orders: examples last, heads behind positions, a map for each head."""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, T, D, WIDTH = 2, 3, 6, 12, 4


class BatchLast(formulas.Model):
    """(position, feature, example): the last axis of an input, and no features."""

    attends = "self"
    heads = 1

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(T, D, B),)

    def forward(self, x):
        q, k, v = (
            part.view(B, T, self.heads, -1) for part in self.qkv(x.permute(2, 0, 1)).chunk(3, -1)
        )
        weights = torch.einsum("bqhd,bkhd->qkhb", q, k).softmax(1)
        return torch.einsum("qkhb,bkhd->qhdb", weights, v).flatten(1, 2)

    def truth(self, x):
        parts = self.qkv(x.permute(2, 0, 1)).chunk(3, -1)
        q, k, v = (dense.heads(part, self.heads) for part in parts)
        weights = dense.weights(q, k, scale=1.0)
        return [weights], dense.merged(dense.mix(weights, v)).permute(1, 2, 0)


class BatchLastHeads(BatchLast):
    heads = H


class PositionsBeforeHeads(formulas.Model):
    """(batch, position, head, width), with no projection."""

    attends = "cross"
    order = "bqhd", "bkhd"

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(B, 5, H, WIDTH), torch.randn(B, T, H, WIDTH), torch.randn(B, T, H, WIDTH)

    def forward(self, q, k, v):
        queries, keys = self.order
        weights = (torch.einsum(f"{queries},{keys}->bhqk", q, k) * self.scale).softmax(-1)
        return torch.einsum(f"bhqk,{keys}->{queries}", weights, v)

    def truth(self, q, k, v):
        queries, keys = self.order
        q, k, v = (
            torch.einsum(f"{axes}->bh{axes.strip('bhd')}d", tensor)
            for axes, tensor in ((queries, q), (keys, k), (keys, v))
        )
        weights = dense.weights(q, k, scale=float(self.scale))
        return [weights], torch.einsum(f"bhqd->{queries}", dense.mix(weights, v))


class PositionsFirst(PositionsBeforeHeads):
    """(position, batch, head, width): heads may as well come before the examples."""

    group = "unknown"
    order = "qbhd", "kbhd"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(5, B, H, WIDTH), torch.randn(T, B, H, WIDTH), torch.randn(T, B, H, WIDTH)


class MapPerHead(formulas.Model):
    """A matrix for each head, broadcast over the examples."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.randn(3, H, D, WIDTH) / 3)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(H, T, D),)  # as many examples as heads

    def forward(self, x):
        q, k, v = (x[:, None] @ each for each in self.maps)
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def truth(self, x):
        q, k, v = (torch.stack([x @ head for head in each], 1) for each in self.maps)
        weights = dense.weights(q, k, scale=1.0)
        return [weights], dense.merged(dense.mix(weights, v))


class MapPerHeadRepeated(MapPerHead):
    """The input is copied for each head."""

    def forward(self, x):
        copies = x.repeat(H, 1, 1).view(H, -1, D)
        q, k, v = (torch.bmm(copies, each).view(-1, T, WIDTH) for each in self.maps)
        return torch.cat(torch.bmm((q @ k.mT).softmax(-1), v).split(len(x)), -1)


KINDS = (
    *(BatchLast, BatchLastHeads, PositionsBeforeHeads, PositionsFirst),
    *(MapPerHead, MapPerHeadRepeated),
)
TARGETS = [formulas.target(kind, "layouts") for kind in KINDS]
