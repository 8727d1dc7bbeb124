"""Slots compete for positions in a softmax over *queries*; then positions are averaged.

The weights are those that mix the values: normalised over positions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, S = 2, 4, 9, 32, 3


def _shares(q: Tensor, k: Tensor, eps: float) -> Tensor:
    """(batch, head, slot, position): a softmax over slots, then a mean over positions."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    shares = dense.softmax(scores.mT).mT + eps
    return shares / shares.sum(-1, keepdim=True)


class Slots(formulas.Model):
    """Locatello et al. 2020, one iteration."""

    attends = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(1, S, D))
        self.q, self.kv, self.update = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.GRUCell(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def forward(self, x):
        q, (k, v) = self.q(self.slots.expand(B, -1, -1)), self.kv(x).chunk(2, -1)
        shares = (torch.einsum("bid,bjd->bij", q, k) * D**-0.5).softmax(1)
        weights = F.normalize(shares + 1e-8, p=1, dim=-1)
        return torch.einsum("bjd,bij->bid", v, weights)

    def truth(self, x):
        q, (k, v) = self.q(self.slots.expand(B, -1, -1)), self.kv(x).chunk(2, -1)
        weights = _shares(q[:, None], k[:, None], 1e-8)
        return [weights], (weights @ v[:, None])[:, 0]


class Iterated(Slots):
    """Three iterations, with a recurrent update between."""

    def forward(self, x):
        slots, (k, v) = self.slots.expand(B, -1, -1), self.kv(x).chunk(2, -1)
        for _ in range(3):
            scores = torch.einsum("bid,bjd->bij", self.q(slots), k) * D**-0.5
            shares = scores.softmax(dim=1) + 1e-8
            weights = shares / shares.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, weights)
            slots = self.update(updates.reshape(-1, D), slots.reshape(-1, D)).view(B, S, D)
        return slots

    def truth(self, x):
        slots, (k, v), sites = self.slots.expand(B, -1, -1), self.kv(x).chunk(2, -1), []
        for _ in range(3):
            sites.append(_shares(self.q(slots)[:, None], k[:, None], 1e-8))
            updates = (sites[-1] @ v[:, None])[:, 0]
            slots = self.update(updates.flatten(0, 1), slots.flatten(0, 1)).view(B, S, D)
        return sites, slots


class OfHeads(Slots):
    """Inverted attention (Wu et al. 2023): the same with heads."""

    def forward(self, x):
        q, (k, v) = self.q(self.slots.expand(B, -1, -1)), self.kv(x).chunk(2, -1)
        q, k, v = (tensor.unflatten(-1, (H, -1)).transpose(1, 2) for tensor in (q, k, v))
        shares = (q @ k.mT * (D // H) ** -0.5).softmax(-2)
        weights = shares / (shares.sum(-1, keepdim=True) + 1e-8)
        return (weights @ v).transpose(1, 2).reshape(B, S, D)

    def truth(self, x):
        projected = (self.q(self.slots.expand(B, -1, -1)), *self.kv(x).chunk(2, -1))
        q, k, v = (dense.heads(tensor, H) for tensor in projected)
        weights = _shares(q, k, 0.0)
        return [weights], dense.merged(dense.mix(weights, v))


KINDS = (Slots, Iterated, OfHeads)
TARGETS = [formulas.target(kind, "slots") for kind in KINDS]
