"""Values that belong to a pair of query and key: points, neighbours, edges with features."""

import torch
from torch import Tensor, nn

from . import dense, formulas

B, H, N, D, W = 2, 4, 9, 12, 6  # W: width of a head


def _points() -> tuple[Tensor, Tensor]:
    return torch.randn(B, N, D), torch.randn(B, N, 3)


class Points(formulas.Model):
    """Point transformers (Zhao et al. 2021): a weight for every channel, which stand for heads."""

    attends = "self"
    inputs = staticmethod(_points)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.offset, self.score = nn.Linear(D, 3 * D), nn.Linear(3, D), nn.Linear(D, D)

    def forward(self, x, points):
        q, k, v = self.qkv(x).chunk(3, -1)
        offset = self.offset(points[:, :, None] - points[:, None])
        weights = self.score(q[:, :, None] - k[:, None] + offset).softmax(-2)  # (b, i, j, channel)
        return torch.einsum("bijd,bijd->bid", weights, v[:, None] + offset)

    def truth(self, x, points):
        q, k, v = self.qkv(x).chunk(3, -1)
        offset = self.offset(points[:, :, None] - points[:, None])
        scores = self.score(q[:, :, None] - k[:, None] + offset)
        weights = dense.softmax(scores.permute(0, 3, 1, 2))
        return [weights], (weights.permute(0, 2, 3, 1) * (v[:, None] + offset)).sum(2)


class Neighbours(formulas.Model):
    """SE(3)-Transformers, Equiformer: the five nearest keys, gathered for every head."""

    attends = "self"
    inputs = staticmethod(_points)

    def __init__(self) -> None:
        super().__init__()
        self.heads, (self.q, self.k, self.v) = H, (nn.Linear(D, H * W) for _ in range(3))

    def forward(self, x, points):
        near = torch.cdist(points, points).topk(5, largest=False).indices
        q, k, v = (
            projection(x).view(B, N, H, W).transpose(1, 2)
            for projection in (self.q, self.k, self.v)
        )
        index = near[:, None, :, :, None].expand(B, H, N, 5, W)
        k, v = (tensor[:, :, None].expand(B, H, N, N, W).gather(3, index) for tensor in (k, v))
        weights = (torch.einsum("bhid,bhijd->bhij", q, k) * W**-0.5).softmax(-1)
        mixed = torch.einsum("bhij,bhijd->bhid", weights, v)
        return mixed.transpose(1, 2).reshape(B, N, H * W)

    def truth(self, x, points):
        far = (points[:, :, None] - points[:, None]).square().sum(-1)
        allowed = (far <= far.sort(-1).values[..., 4:5])[:, None]
        q, k, v = (dense.heads(projection(x), H) for projection in (self.q, self.k, self.v))
        weights = dense.weights(q, k, allowed=allowed)
        return [weights], dense.merged(dense.mix(weights, v))


class OwnKeyFirst(formulas.Model):
    """SE(3)-Transformers: a key of its own before five gathered ones; features have two axes."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.q, self.k, self.v, self.own = (nn.Parameter(torch.randn(D, H * W)) for _ in range(4))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D, 3), torch.randn(B, N, 3)

    def forward(self, x, points):
        far = torch.cdist(points, points) + torch.eye(N) * 1e6
        near = far.topk(5, largest=False).indices[..., None, None].expand(B, N, 5, H * W, 3)
        q, k, v, own = (
            torch.einsum("bndm,de->bnem", x, matrix)
            for matrix in (self.q, self.k, self.v, self.own)
        )
        q, own = (tensor.view(B, N, H, W, 3).transpose(1, 2) for tensor in (q, own))
        k, v = (tensor[:, None].expand(B, N, N, H * W, 3).gather(2, near) for tensor in (k, v))
        k, v = (tensor.view(B, N, 5, H, W, 3).permute(0, 3, 1, 2, 4, 5) for tensor in (k, v))
        k, v = (torch.cat((own[:, :, :, None], tensor), 3) for tensor in (k, v))
        weights = (torch.einsum("bhidm,bhijdm->bhij", q, k) * 0.1).softmax(-1)
        return torch.einsum("bhij,bhijdm->bhidm", weights, v)

    def truth(self, x, points):
        far = (points[:, :, None] - points[:, None]).square().sum(-1)
        allowed = (far <= far.sort(-1).values[..., 5:6])[:, None]  # itself and five more
        q, k, v, own = (
            torch.einsum("bndm,de->bnem", x, matrix).reshape(B, N, H, W * 3).transpose(1, 2)
            for matrix in (self.q, self.k, self.v, self.own)
        )
        itself = torch.eye(N, dtype=torch.bool)[..., None]
        k, v = (torch.where(itself, own[:, :, None], tensor[:, :, None]) for tensor in (k, v))
        scores = (q[:, :, :, None] * k).sum(-1) * 0.1
        weights = dense.softmax(scores.masked_fill(~allowed, -torch.inf))
        return [weights], (weights[..., None] * v).sum(3).view(B, H, N, W, 3)


class Indexed(Neighbours):
    """LieTransformer: neighbours by x[batch, index], and then their keys and values."""

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        near = torch.stack([torch.randperm(N)[:5] for _ in range(B * N)])
        return torch.randn(B, N, D), near.view(B, N, 5)

    def forward(self, x, near):
        neighbours = x[torch.arange(B)[:, None, None], near]
        q = self.q(x).view(B, N, H, W).transpose(1, 2)
        k, v = (
            projection(neighbours).view(B, N, -1, H, W).permute(0, 3, 1, 2, 4)
            for projection in (self.k, self.v)
        )
        weights = (torch.einsum("bhid,bhijd->bhij", q, k) * W**-0.5).softmax(-1)
        mixed = torch.einsum("bhij,bhijd->bhid", weights, v)
        return mixed.transpose(1, 2).reshape(B, N, H * W)

    def truth(self, x, near):
        allowed = torch.zeros(B, N, N, dtype=torch.bool).scatter(2, near, True)
        q, k, v = (dense.heads(projection(x), H) for projection in (self.q, self.k, self.v))
        weights = dense.weights(q, k, allowed=allowed[:, None])
        return [weights], dense.merged(dense.mix(weights, v))


class IndexedAll(Indexed):
    """Every point is a neighbour, by an index that is expanded."""

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D), torch.arange(N).expand(B, N, N)


class EdgeFeatures(formulas.Model):
    """graph-transformer-pytorch: features of edges in keys and values, batch × head folded."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.q, self.kv = H, nn.Linear(D, H * W), nn.Linear(D, 2 * H * W)
        self.edges = nn.Linear(5, H * W)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(B, N, D), torch.randn(B, N, N, 5)

    def forward(self, x, edges):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        q, k, v = (
            tensor.view(B, N, H, W).transpose(1, 2).reshape(B * H, N, W) for tensor in (q, k, v)
        )
        edges = self.edges(edges).view(B, N, N, H, W).permute(0, 3, 1, 2, 4)
        edges = edges.reshape(B * H, N, N, W)
        scores = torch.einsum("bid,bijd->bij", q, k[:, None] + edges) * W**-0.5
        mixed = torch.einsum("bij,bijd->bid", scores.softmax(-1), v[:, None] + edges)
        return mixed.view(B, H, N, W).transpose(1, 2).reshape(B, N, H * W)

    def truth(self, x, edges):
        k, v = self.kv(x).chunk(2, -1)
        q, k, v = (dense.heads(tensor, H)[:, :, None] for tensor in (self.q(x), k, v))
        edges = self.edges(edges).unflatten(-1, (H, W)).permute(0, 3, 1, 2, 4)
        weights = dense.softmax((q.transpose(2, 3) * (k + edges)).sum(-1) * W**-0.5)
        return [weights], dense.merged((weights[..., None] * (v + edges)).sum(3))


class Coordinates(formulas.Model):
    """En-transformers: differences of coordinates are mixed; heads come last."""

    inputs = staticmethod(_points)
    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qk, self.score = H, nn.Linear(D, 2 * H * W), nn.Linear(H, H)

    def forward(self, x, points):
        q, k = (tensor.view(B, N, H, W).transpose(1, 2) for tensor in self.qk(x).chunk(2, -1))
        weights = self.score((q @ k.mT).permute(0, 2, 3, 1)).softmax(-2)  # (b, i, j, head)
        offset = (points[:, :, None] - points[:, None])[..., None].expand(B, N, N, 3, H)
        return torch.einsum("bijh,bijch->bhic", weights, offset)

    def truth(self, x, points):
        q, k = (dense.heads(tensor, H) for tensor in self.qk(x).chunk(2, -1))
        scores = self.score(torch.einsum("bhid,bhjd->bijh", q, k))
        weights = dense.softmax(scores.permute(0, 3, 1, 2))
        offset = (points[:, :, None] - points[:, None])[:, None]
        return [weights], (weights[..., None] * offset).sum(3)


class Memory(formulas.Model):
    """Memorizing Transformers (Wu et al. 2022): own memories and common keys in one softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.q, self.kv = H, nn.Linear(D, H * W), nn.Linear(D, 2 * W)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(B, N, D), torch.randn(B, H, N, 3, W), torch.randn(B, H, N, 3, W)

    def forward(self, x, memory_keys, memory_values):
        q, (k, v) = self.q(x).view(B, N, H, W).transpose(1, 2), self.kv(x).chunk(2, -1)
        local = torch.einsum("bhid,bjd->bhij", q, k)
        far = torch.einsum("bhid,bhijd->bhij", q, memory_keys)
        weights = torch.cat((far, local), -1).softmax(-1)
        mixed = torch.einsum("bhij,bjd->bhid", weights[..., 3:], v)
        mixed = mixed + torch.einsum("bhij,bhijd->bhid", weights[..., :3], memory_values)
        return mixed.transpose(1, 2).reshape(B, N, H * W)

    def truth(self, x, memory_keys, memory_values):
        q, (k, v) = dense.heads(self.q(x), H), self.kv(x).chunk(2, -1)
        keys, values = (
            torch.cat([memory, tensor[:, None, None].expand(B, H, N, N, W)], 3)
            for memory, tensor in ((memory_keys, k), (memory_values, v))
        )
        weights = dense.softmax((q[:, :, :, None] * keys).sum(-1))
        return [weights], dense.merged((weights[..., None] * values).sum(3))


KINDS = (Points, Neighbours, OwnKeyFirst, Indexed, IndexedAll, EdgeFeatures, Coordinates, Memory)
TARGETS = [formulas.target(kind, "pairs") for kind in KINDS]
