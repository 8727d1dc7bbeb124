"""Weights that are blended with a softmax of parameters, as of positions."""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, W = 2, 3, 5, 12, 4  # W: width of a head


class PositionsLast(formulas.Model):
    """ConViT (d'Ascoli et al. 2021): a gate of each head, and a sum of 1 over the keys again."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.gates = H, nn.Parameter(torch.randn(H, 1, 1))
        self.qkv, self.positions = nn.Linear(D, 3 * D), nn.Linear(3, H)
        self.register_buffer("offsets", torch.randn(1, N, N, 3))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, D),)

    def position_scores(self) -> Tensor:
        return self.positions(self.offsets.expand(B, -1, -1, -1)).permute(0, 3, 1, 2)

    def blended(self, q: Tensor, k: Tensor) -> Tensor:
        content = (q @ k.mT * W**-0.5).softmax(-1)
        positions, gate = self.position_scores().softmax(-1), self.gates.sigmoid()
        weights = (1.0 - gate) * content + gate * positions
        weights /= weights.sum(dim=-1).unsqueeze(-1)
        return weights

    def forward(self, x):
        q, k, v = self.qkv(x).view(B, N, 3, H, W).permute(2, 0, 3, 1, 4)
        return (self.blended(q, k) @ v).transpose(1, 2).reshape(B, N, D)

    def truth(self, x):
        q, k, v = (dense.heads(tensor, H) for tensor in self.qkv(x).chunk(3, -1))
        gate = self.gates.sigmoid()
        weights = (1 - gate) * dense.weights(q, k) + gate * dense.softmax(self.position_scores())
        return [weights], dense.merged(dense.mix(weights, v))


class PositionsFirst(PositionsLast):
    def blended(self, q, k):
        positions, gate = self.position_scores().softmax(-1), self.gates.sigmoid()
        return gate * positions + (1.0 - gate) * (q @ k.mT * W**-0.5).softmax(-1)


class Interpolated(PositionsLast):
    """One table of positions for the whole batch, blended by one operator."""

    def position_scores(self):
        return self.positions(self.offsets).permute(0, 3, 1, 2)

    def blended(self, q, k):
        content = (q @ k.mT * W**-0.5).softmax(-1)
        return torch.lerp(content, self.position_scores().softmax(-1), self.gates.sigmoid())


KINDS = (PositionsLast, PositionsFirst, Interpolated)
TARGETS = [formulas.target(kind, "blended") for kind in KINDS]
