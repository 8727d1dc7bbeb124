"""AlphaFold and its kin: pairs, alignments, triangles and points."""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, W, P, R = 2, 4, 7, 20, 5, 6, 3  # W: width of a head, P: of a pair, R: rows


class Folding(formulas.Model):
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.no_heads = H
        self.q, self.k, self.v, self.gate = (nn.Linear(D, H * W) for _ in range(4))
        self.bias = nn.Linear(P, H, bias=False)


class Triangle(Folding):
    """Jumper et al. 2021, algorithm 13: edges that start in the same node look at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.gate = (nn.Linear(P, H * W) for _ in range(4))

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, N, P),)

    def forward(self, pairs):
        q, k, v = (
            projection(pairs).view(B, N, N, H, W).transpose(-2, -3)
            for projection in (self.q, self.k, self.v)
        )
        bias = self.bias(pairs).permute(0, 3, 1, 2).unsqueeze(1)  # (batch, 1, head, j, k)
        weights = (q * W**-0.5 @ k.transpose(-1, -2) + bias).softmax(-1)
        mixed = (weights @ v).transpose(-2, -3) * self.gate(pairs).sigmoid().view(B, N, N, H, W)
        return mixed.flatten(-2)

    def truth(self, pairs):
        q, k, v = (
            dense.heads(projection(pairs.flatten(0, 1)), H)
            for projection in (self.q, self.k, self.v)
        )
        bias = self.bias(pairs).permute(0, 3, 1, 2).repeat_interleave(N, 0)
        weights = dense.weights(q, k, bias=bias)
        mixed = dense.merged(dense.mix(weights, v)).view(B, N, N, H * W)
        return [weights], mixed * self.gate(pairs).sigmoid()


class TriangleEinsum(Triangle):
    """The same in the order of the letters."""

    def forward(self, pairs):
        q, k, v = (projection(pairs).view(B, N, N, H, W) for projection in (self.q, self.k, self.v))
        scores = torch.einsum("bijhd,bikhd->bhijk", q * W**-0.5, k)
        scores = scores + self.bias(pairs).permute(0, 3, 1, 2)[:, :, None]
        mixed = torch.einsum("bhijk,bikhd->bijhd", scores.softmax(-1), v)
        return mixed.flatten(-2) * self.gate(pairs).sigmoid()


class TiedRows(Folding):
    """MSA Transformer (Rao et al. 2021): one matrix for all rows of an alignment."""

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(R, N, B, D),)

    def forward(self, x):
        q, k, v = (projection(x).view(R, N, B, H, W) for projection in (self.q, self.k, self.v))
        scores = torch.einsum("rinhd,rjnhd->hnij", q * (W * R) ** -0.5, k)
        mixed = torch.einsum("hnij,rjnhd->rinhd", scores.softmax(-1), v)
        return mixed.contiguous().view(R, N, B, H * W)

    def truth(self, x):
        q, k, v = (
            projection(x).view(R, N, B, H, W).permute(2, 3, 1, 0, 4)
            for projection in (self.q, self.k, self.v)
        )  # (batch, head, position, row, width)
        weights = dense.weights(q.flatten(3), k.flatten(3))
        mixed = dense.mix(weights, v.flatten(3)).view(B, H, N, R, W)
        return [weights], mixed.permute(3, 2, 0, 1, 4).flatten(3)


class PairWeighted(Folding):
    """AlphaFold 3, algorithm 10: pairs alone give the weights, and every row is mixed by them."""

    attends = None

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, R, N, D), torch.randn(B, N, N, P)

    def forward(self, rows, pairs):
        v, gate = self.v(rows).view(B, R, N, H, W), self.gate(rows).view(B, R, N, H, W).sigmoid()
        weights = self.bias(pairs).softmax(-2)  # (batch, i, j, head)
        return (gate * torch.einsum("bijh,bsjhd->bsihd", weights, v)).flatten(-2)

    def truth(self, rows, pairs):
        weights = dense.softmax(self.bias(pairs).permute(0, 3, 1, 2))
        v = self.v(rows).view(B, R, N, H, W).permute(0, 3, 2, 1, 4).flatten(3)
        mixed = dense.mix(weights, v).view(B, H, N, R, W).permute(0, 3, 2, 1, 4).flatten(3)
        return [weights], mixed * self.gate(rows).sigmoid()


class InvariantPoints(Folding):
    """Jumper et al. 2021, algorithm 22: one softmax mixes values, points and pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Linear(D, 3 * H * 2 * 3)  # query, key and value; two points a head

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D), torch.randn(B, N, N, P)

    def forward(self, x, pairs):
        q, k, v = (projection(x).view(B, N, H, W) for projection in (self.q, self.k, self.v))
        points = self.points(x).view(B, N, 3, H, 2, 3).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * (3 * W) ** -0.5
        scores = scores + self.bias(pairs).permute(0, 3, 1, 2)
        apart = (points[0][:, :, None] - points[1][:, None]).square().sum((-1, -2))
        scores = scores - 0.1 * apart.permute(0, 3, 1, 2)
        weights = scores.softmax(-1)
        values = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
        moved = torch.einsum("bhij,bjhpc->bihpc", weights, points[2]).flatten(2)
        pairs = torch.einsum("bhij,bijc->bihc", weights, pairs).flatten(2)
        return torch.cat([values, moved, pairs], -1)

    def truth(self, x, pairs):
        q, k, v = (dense.heads(projection(x), H) for projection in (self.q, self.k, self.v))
        points = self.points(x).view(B, N, 3, H, 6).permute(2, 0, 3, 1, 4)
        bias = self.bias(pairs).permute(0, 3, 1, 2)
        bias = bias - 0.1 * (points[0][:, :, :, None] - points[1][:, :, None]).square().sum(-1)
        weights = dense.weights(q, k, bias=bias, scale=(3 * W) ** -0.5)
        mixed = [dense.merged(dense.mix(weights, tensor)) for tensor in (v, points[2])]
        mixed.append(
            torch.stack(
                [
                    torch.stack(
                        [weights[:, :, i, j, None] * pairs[:, i, None, j] for j in range(N)]
                    ).sum(0)
                    for i in range(N)
                ],
                1,
            ).flatten(2)
        )
        return [weights], torch.cat(mixed, -1)


class GlobalQuery(Folding):
    """Jumper et al. 2021, algorithm 19: every column of an alignment asks once, with its mean."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(D, W), nn.Linear(D, W)

    @staticmethod
    def inputs() -> tuple[Tensor]:
        return (torch.randn(B, N, R, D),)  # columns before rows

    def forward(self, x):
        q = self.q(x.mean(2)).view(B, N, H, W) * W**-0.5
        k, v = self.k(x), self.v(x)
        weights = (q @ k.transpose(-1, -2)).softmax(-1)  # (batch, column, head, row)
        mixed = weights @ v
        return self.gate(x).sigmoid() * mixed.flatten(-2).unsqueeze(2)

    def truth(self, x):
        q = self.q(x.mean(2)).view(B * N, H, 1, W)
        k, v = (projection(x).view(B * N, 1, R, W) for projection in (self.k, self.v))
        weights = dense.weights(q, k)
        mixed = dense.mix(weights, v).view(B, N, 1, H * W)
        return [weights], self.gate(x).sigmoid() * mixed


KINDS = (Triangle, TriangleEinsum, TiedRows, PairWeighted, InvariantPoints, GlobalQuery)
TARGETS = [formulas.target(kind, "proteins") for kind in KINDS]
