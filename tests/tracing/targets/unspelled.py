"""Scores that are no matrix product, and weights that every feature has for itself."""

import math

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D = 2, 3, 5, 12


class Projected(formulas.Model):
    attends: str | tuple[str, ...] | None = "self"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, (self.q, self.k, self.v) = H, (nn.Linear(D, D) for _ in range(3))

    @staticmethod
    def inputs() -> tuple[Tensor, ...]:
        return (torch.randn(B, N, D),)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [map_(x).view(B, N, H, 4).transpose(1, 2) for map_ in (self.q, self.k, self.v)]

    def truth(self, x):
        q, k, v = (dense.heads(map_(x), H) for map_ in (self.q, self.k, self.v))
        weights = dense.weights(q, k)
        return [weights], dense.merged(dense.mix(weights, v))


class RowByRow(Projected):
    """The scores of each query are made by a product and a sum, and stacked."""

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = torch.stack([(q[:, :, row, None] * k).sum(-1) for row in range(N)], 2) / 2
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class RowsOfWeights(Projected):
    """Weights written row by row into a buffer are lost, and a note says so."""

    group = "gaps"

    def forward(self, x):
        q, k, v = self.heads(x)
        weights = torch.zeros(B, H, N, N)
        for row in range(N):
            weights[:, :, row] = ((q[:, :, row, None] * k).sum(-1) / 2).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class Distances(Projected):
    """The nearer a key, the larger its weight."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return ((-torch.cdist(q, k)).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def truth(self, x):
        q, k, v = (dense.heads(map_(x), H) for map_ in (self.q, self.k, self.v))
        squares = (q[..., :, None, :] - k[..., None, :, :]).square().sum(-1)
        weights = dense.softmax(-squares.sqrt())
        return [weights], dense.merged(dense.mix(weights, v))


class Beside(formulas.Model):
    """BiDAF (Seo et al. 2017): query, key and their product beside each other, mapped to a score;
    then one row of attention from the largest of each query."""

    attends = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3 * D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D), torch.randn(B, 7, D)

    def forward(self, context, question):
        left = context[:, :, None].expand(-1, -1, 7, -1)
        right = question[:, None].expand(-1, N, -1, -1)
        scores = self.score(torch.cat([left, right, left * right], -1)).squeeze(-1)
        forth = torch.bmm(scores.softmax(-1), question)
        return forth, torch.bmm(scores.max(2)[0].softmax(-1)[:, None], context)

    def truth(self, context, question):
        mine, theirs, both = self.score.weight[0].chunk(3)
        scores = (context @ mine)[..., None] + (question @ theirs)[:, None] + self.score.bias
        scores = scores + (context * both) @ question.mT
        sites = [dense.softmax(scores), dense.softmax(scores.amax(2))[:, None]]
        output = tuple(w @ v for w, v in zip(sites, (question, context)))
        return [weights[:, None] for weights in sites], output


class EachFeature(formulas.Model):
    """Attentive statistics pooling (Okabe et al. 2018): every channel has weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.widen = nn.Conv1d(6, 4, 1), nn.Conv1d(4, 6, 1)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, 6, 7),)

    def forward(self, x):
        weights = self.widen(self.narrow(x).tanh()).softmax(2)
        mean = torch.sum(weights * x, 2)
        square = torch.sum(weights * x**2, 2)
        return torch.cat([mean, (square - mean**2).clamp(min=1e-9).sqrt()], 1)

    def truth(self, x):
        weights = dense.softmax(self.widen(self.narrow(x).tanh()))
        mean = (weights * x).sum(2)
        deviation = ((weights * x**2).sum(2) - mean**2).clamp(min=1e-9).sqrt()
        return [weights[:, :, None]], torch.cat([mean, deviation], 1)


class CrissCross(formulas.Model):
    """CCNet (Huang et al. 2019): a place asks its column and its row, in one softmax."""

    group = "unknown"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(D, D, 1) for _ in range(3))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, D, 4, 5),)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        column = torch.einsum("bchw,bcgw->bhwg", q, k)
        column = column.masked_fill(torch.eye(4, dtype=torch.bool)[:, None], -math.inf)
        weights = torch.cat([column, torch.einsum("bchw,bchg->bhwg", q, k)], 3).softmax(3)
        mixed = torch.einsum("bhwg,bcgw->bchw", weights[..., :4], v)
        return mixed + torch.einsum("bhwg,bchg->bchw", weights[..., 4:], v)

    def truth(self, x):
        q, k, v = (map_(x).flatten(2).mT for map_ in (self.q, self.k, self.v))
        rows, columns = torch.arange(20) // 5, torch.arange(20) % 5
        crossing = (rows[:, None] == rows) | (columns[:, None] == columns)
        weights = dense.weights(q[:, None], k[:, None], allowed=crossing, scale=1.0)
        return [weights], dense.mix(weights, v[:, None])[:, 0].mT.reshape(B, D, 4, 5)


KINDS = (RowByRow, RowsOfWeights, Distances, Beside, EachFeature, CrissCross)
TARGETS = [formulas.target(kind, "unspelled") for kind in KINDS]
