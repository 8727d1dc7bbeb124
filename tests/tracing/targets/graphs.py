"""Graphs as lists of edges: a softmax over the edges that end in the same node, by scatter.

A graph is one example: (1, head, target node, source node).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import SEED, dense, formulas

N, M, H, D = 9, 7, 4, 12


def random_edges(sources: int = N, targets: int = N) -> Tensor:
    """(2, edge): source and target, no edge twice; some nodes may have none."""
    pairs = torch.stack([torch.randint(sources, (30,)), torch.randint(targets, (30,))])
    return torch.unique(pairs, dim=1)


def edge_weights(scores: Tensor, edges: Tensor) -> Tensor:
    """(1, head, target, source) of scores (head, target, source)."""
    allowed = torch.zeros(scores.shape[1:], dtype=torch.bool)
    allowed[edges[1], edges[0]] = True
    return dense.softmax(scores.masked_fill(~allowed, -torch.inf))[None]


def segment_softmax(scores: Tensor, index: Tensor, count: int) -> Tensor:
    """As in PyTorch Geometric: scores (edge, head), index (edge,) into `count` nodes."""
    wide = index.view(-1, 1).expand_as(scores)
    top = scores.new_zeros(count, scores.shape[1])
    top = top.scatter_reduce_(0, wide, scores.detach(), "amax", include_self=False)
    powers = (scores - top.index_select(0, index)).exp()
    total = scores.new_zeros(count, scores.shape[1]).scatter_add_(0, wide, powers) + 1e-16
    return powers / total.index_select(0, index)


def segment_sum(messages: Tensor, index: Tensor, count: int) -> Tensor:
    """(node, …) of messages (edge, …)."""
    wide = index.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)
    return messages.new_zeros(count, *messages.shape[1:]).scatter_add_(0, wide, messages)


class Gat(formulas.Model):
    """Graph attention (Veličković et al. 2018), as GATConv of PyTorch Geometric."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.project = H, nn.Linear(D, H * 5, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(1, H, 5)) for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(N, D), random_edges()

    def forward(self, x, edges):
        source, target = edges
        x = self.project(x).view(-1, H, 5)
        left, right = (x * self.source).sum(-1), (x * self.target).sum(-1)  # (node, head)
        scores = left.index_select(0, source) + right.index_select(0, target)
        weights = segment_softmax(F.leaky_relu(scores, 0.2), target, len(x))
        messages = weights.unsqueeze(-1) * x.index_select(0, source)  # (edge, head, width)
        return segment_sum(messages, target, len(x)).flatten(1)

    def truth(self, x, edges):
        x = self.project(x).view(-1, H, 5).transpose(0, 1)  # (head, node, width)
        left, right = ((x * tensor[0, :, None]).sum(-1) for tensor in (self.source, self.target))
        weights = edge_weights(F.leaky_relu(right[:, :, None] + left[:, None], 0.2), edges)
        return [weights], dense.merged(dense.mix(weights, x[None]))[0]


class Relational(formulas.Model):
    """RGAT (Busbridge et al. 2019): every edge has the map of its relation."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.maps = nn.Parameter(torch.randn(3, D, H * 5))
        self.query, self.key = (nn.Parameter(torch.randn(H * 5, H)) for _ in range(2))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        edges = random_edges()
        return torch.randn(N, D), edges, torch.randint(3, edges.shape[1:])

    def forward(self, x, edges, relations):
        source, target = edges
        maps = self.maps.index_select(0, relations)  # (edge, D, head × width)
        near = torch.bmm(x.index_select(0, target).unsqueeze(1), maps).squeeze(-2)
        far = torch.bmm(x.index_select(0, source).unsqueeze(1), maps).squeeze(-2)
        scores = F.leaky_relu(near @ self.query + far @ self.key, 0.2)
        weights = segment_softmax(scores, target, N)
        return segment_sum(far.view(-1, H, 5) * weights.view(-1, H, 1), target, N)

    def truth(self, x, edges, relations):
        weights, mixed = torch.zeros(1, H, N, N).double(), torch.zeros(N, H, 5).double()
        for node in range(N):
            mine = [at for at in range(edges.shape[1]) if edges[1, at] == node]
            if not mine:
                continue
            near = torch.stack([x[node] @ self.maps[relations[at]] for at in mine])
            far = torch.stack([x[edges[0, at]] @ self.maps[relations[at]] for at in mine])
            share = dense.softmax(F.leaky_relu(near @ self.query + far @ self.key, 0.2).mT)
            weights[0, :, node, edges[0, mine]] = share
            mixed[node] = torch.einsum("he,ehd->hd", share, far.view(-1, H, 5))
        return [weights], mixed


class NoEdges(Gat):
    """Of a graph whose nodes are alone."""

    attends = "unknown"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(N, D), torch.empty(2, 0, dtype=torch.long)


class OneEdge(Gat):
    """A molecule of one bond."""

    attends = "unknown"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(3, D), torch.tensor([[2], [1]])


class OneNode(Gat):
    attends = "unknown"

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(1, D), torch.tensor([[0], [0]])


class GatV2(Gat):
    """Brody et al. 2022: the nonlinearity stands before the scoring vector."""

    def forward(self, x, edges):
        source, target = edges
        x = self.project(x).view(-1, H, 5)
        keys = x.index_select(0, source)
        both = F.leaky_relu(keys + x.index_select(0, target), 0.2)
        weights = segment_softmax((both * self.source).sum(-1), target, N)
        return segment_sum(keys * weights.unsqueeze(-1), target, N).view(N, -1)

    def truth(self, x, edges):
        x = self.project(x).view(N, H, 5).transpose(0, 1)
        both = F.leaky_relu(x[:, :, None] + x[:, None], 0.2)  # (head, target, source, width)
        weights = edge_weights((both * self.source[0, :, None, None]).sum(-1), edges)
        return [weights], dense.merged(dense.mix(weights, x[None]))[0]


class Bipartite(formulas.Model):
    """Dot products between two kinds of nodes (TransformerConv, HGT), by `index_add_`."""

    attends = "cross"

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = H
        self.q, self.k, self.v = nn.Linear(D, H * 6), nn.Linear(10, H * 6), nn.Linear(10, H * 6)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(N, D), torch.randn(M, 10), random_edges(M, N)

    def forward(self, targets, sources, edges):
        source, target = edges
        q = self.q(targets).view(-1, H, 6)[target]
        k, v = (project(sources).view(-1, H, 6)[source] for project in (self.k, self.v))
        scores = (q * k).sum(-1) / 6**0.5
        top = torch.full((N, H), -torch.inf)
        top = top.scatter_reduce(0, target[:, None].expand(-1, H), scores, "amax")
        powers = (scores - top[target]).exp()
        weights = powers / torch.zeros(N, H).index_add_(0, target, powers)[target]
        return torch.zeros(N, H, 6).index_add_(0, target, weights[..., None] * v).flatten(1)

    def truth(self, targets, sources, edges):
        projected = (self.q(targets), self.k(sources), self.v(sources))
        q, k, v = (tensor.view(-1, H, 6).transpose(0, 1) for tensor in projected)
        weights = edge_weights(q @ k.mT / 6**0.5, edges)
        return [weights], dense.merged(dense.mix(weights, v[None]))[0]


class FreedIndices(Bipartite):
    """Indices into the sources are freed before one into the targets takes their memory."""

    def forward(self, targets, sources, edges):
        keys = self.k(sources)
        for _ in range(50):
            keys.index_select(0, edges[1].clone() % M)
        return super().forward(targets, sources, (edges[0], edges[1].clone()))


class Vectors(formulas.Model):
    """PointTransformerConv: a weight for every channel, which stand where heads do."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, 5) for _ in range(3))
        self.offset = nn.Linear(3, 5)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(N, D), torch.randn(N, 3), random_edges()

    def forward(self, x, points, edges):
        source, target = edges
        offset = self.offset(points[target] - points[source])
        scores = self.q(x)[target] - self.k(x)[source] + offset  # (edge, channel)
        weights = segment_softmax(scores, target, N)
        return segment_sum(weights * (self.v(x)[source] + offset), target, N)

    def truth(self, x, points, edges):
        offset = self.offset(points[:, None] - points)  # (target, source, channel)
        scores = self.q(x)[:, None] - self.k(x) + offset
        weights = edge_weights(scores.permute(2, 0, 1), edges)
        return [weights], torch.einsum("cts,tsc->tc", weights[0], self.v(x) + offset)


class Dropout(Gat):
    """Edges are dropped; the weights are those before."""

    def forward(self, x, edges):
        source, target = edges
        x = self.project(x).view(-1, H, 5)
        left, right = (x * self.source).sum(-1), (x * self.target).sum(-1)
        scores = F.leaky_relu(left[source] + right[target], 0.2)
        weights = F.dropout(segment_softmax(scores, target, N), 0.5, training=True)
        return segment_sum(weights.unsqueeze(-1) * x[source], target, N).view(N, -1)

    def truth(self, x, edges):
        (weights,), _ = super().truth(x, edges)
        torch.manual_seed(SEED)
        scale = torch.zeros_like(weights[0])
        scale[:, edges[1], edges[0]] = F.dropout(torch.ones(edges.shape[1], H), 0.5).mT.double()
        x = self.project(x).view(N, H, 5).transpose(0, 1)
        return [weights], dense.merged(dense.mix(weights * scale, x[None]))[0]


class HeadsFirst(Gat):
    """Scores (head, edge), added up along the last axis."""

    def forward(self, x, edges):
        source, target = edges
        x = self.project(x).view(N, H, 5).transpose(0, 1)
        left, right = ((x * tensor.view(H, 1, 5)).sum(-1) for tensor in (self.source, self.target))
        powers = F.leaky_relu(left[:, source] + right[:, target], 0.2).exp()
        total = x.new_zeros(H, N).index_add(1, target, powers)
        weights = powers / total[:, target]
        mixed = x.new_zeros(H, N, 5).index_add(1, target, weights[..., None] * x[:, source])
        return mixed.transpose(0, 1).reshape(N, -1)


class EdgesOfHeads(formulas.Model):
    """Each head has a graph of its own: indices are (edge, head)."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.q, self.k = H, nn.Linear(D, H * 5), nn.Linear(D, H * 5)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        pairs = torch.stack([torch.randperm(N * N)[:20] for _ in range(H)], -1)
        return torch.randn(N, D), pairs // N, pairs % N  # nodes, sources, targets

    def forward(self, x, source, target):
        q, k = (project(x).view(N, H, 5) for project in (self.q, self.k))
        wide_source, wide_target = (i[..., None].repeat(1, 1, 5) for i in (source, target))
        keys = k.gather(0, wide_source)  # (edge, head, width)
        powers = (q.gather(0, wide_target) * keys).sum(-1).exp()
        total = x.new_zeros(N, H).scatter_add_(0, target, powers)
        messages = (powers / total.gather(0, target))[..., None] * keys
        return x.new_zeros(N, H, 5).scatter_add_(0, wide_target, messages).flatten(1)

    def truth(self, x, source, target):
        q, k = (dense.heads(project(x)[None], H) for project in (self.q, self.k))
        edges = [torch.stack(pair) for pair in zip(source.T, target.T)]
        scores = (q @ k.mT)[0]
        weights = torch.cat([edge_weights(s[None], e) for s, e in zip(scores, edges)], 1)
        return [weights], dense.merged(dense.mix(weights, k))[0]


class TargetsOfHeads(EdgesOfHeads):
    """Heads share the sources of their edges, and have targets of their own."""

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        targets = torch.stack([torch.randperm(N) for _ in range(H)], -1)
        sources = torch.arange(2 * N)[:, None].repeat(1, H) % N
        return torch.randn(N, D), sources, torch.cat([targets, (targets + 1) % N])


class NormalisedLate(Gat):
    """The sum divides the nodes, not the edges."""

    group = "gaps"

    def forward(self, x, edges):
        source, target = edges
        x = self.project(x).view(N, H, 5)
        left, right = (x * self.source).sum(-1), (x * self.target).sum(-1)
        powers = F.leaky_relu(left[source] + right[target], 0.2).exp()[..., None]
        total = x.new_zeros(N, H, 1).index_add(0, target, powers)
        mixed = x.new_zeros(N, H, 5).index_add(0, target, powers * x[source])
        return (mixed / total.clamp(min=1e-12)).view(N, -1)


class SortedEdges(Gat):
    """Edges sorted by target, and segments of them (as in CSR)."""

    group = "gaps"

    def forward(self, x, edges):
        order = edges[1].argsort(stable=True)
        source, target = edges[:, order]
        counts = torch.bincount(target, minlength=N)
        x = self.project(x).view(N, H, 5)
        left, right = (x * self.source).sum(-1), (x * self.target).sum(-1)
        scores = F.leaky_relu(left[source] + right[target], 0.2)
        top = torch.segment_reduce(scores.detach(), "max", lengths=counts, axis=0, initial=-1e9)
        powers = (scores - top.repeat_interleave(counts, 0)).exp()
        total = torch.segment_reduce(powers, "sum", lengths=counts, axis=0, initial=0)
        weights = powers / total.repeat_interleave(counts, 0)
        mixed = weights[..., None] * x[source]
        return torch.segment_reduce(mixed, "sum", lengths=counts, axis=0, initial=0).view(N, -1)


class SparseSoftmax(formulas.Model):
    """A sparse matrix of scores: `torch.sparse.softmax`, and a sparse product."""

    group = "gaps"

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

    inputs = staticmethod(Gat.inputs)

    def forward(self, x, edges):
        source, target = edges
        scores = (self.q(x)[target] * self.k(x)[source]).sum(-1) / D**0.5
        matrix = torch.sparse_coo_tensor(edges.flip(0), scores, (N, N), check_invariants=True)
        return torch.sparse.mm(torch.sparse.softmax(matrix, 1), self.v(x))

    def truth(self, x, edges):
        weights = edge_weights((self.q(x) @ self.k(x).mT)[None] / D**0.5, edges)
        return [weights], (weights @ self.v(x))[0, 0]


KINDS = (
    *(Gat, Relational, NoEdges, OneEdge, OneNode, GatV2, Bipartite, FreedIndices, Vectors, Dropout),
    *(HeadsFirst, EdgesOfHeads, TargetsOfHeads, NormalisedLate, SortedEdges, SparseSoftmax),
)
TARGETS = [formulas.target(kind, "graphs") for kind in KINDS]
