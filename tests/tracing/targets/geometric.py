"""Layers of PyTorch Geometric that do more than attend from node to node.

Pooling is a graph of two kinds of nodes, (1, 1, graph, node).
"""

import torch
from torch import Tensor, nn

from . import dense, formulas
from .graphs import D, H, N, edge_weights, random_edges, segment_softmax, segment_sum

GRAPHS = torch.tensor([0] * 4 + [1] * 7)  # the graph of each of 11 nodes


def _inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D), random_edges()


def _pooled(scores: Tensor) -> Tensor:
    """(1, 1, graph, node) of scores (graph, node), or (node,)."""
    edges = torch.stack([torch.arange(len(GRAPHS)), GRAPHS])
    return edge_weights(scores.expand(2, -1)[None], edges)


class Pooling(formulas.Model):
    """AttentionalAggregation: the nodes of a graph are weighed by a gate; nothing is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 1)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(len(GRAPHS), D), GRAPHS

    def forward(self, x, graph):
        return segment_sum(segment_softmax(self.gate(x), graph, 2) * x, graph, 2)

    def truth(self, x, graph):
        weights = _pooled(self.gate(x)[:, 0])
        return [weights], (weights @ x)[0, 0]


class SetToSet(Pooling):
    """Set2Set (Vinyals et al. 2016): a query for each graph, three times anew."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(2 * D, D)

    def forward(self, x, graph):
        state, memory = x.new_zeros(2, D), (x.new_zeros(2, D), x.new_zeros(2, D))
        state = torch.cat([state, state], -1)
        for _ in range(3):
            memory = self.lstm(state, memory)
            query = memory[0]
            scores = (x * query[graph]).sum(-1, keepdim=True)
            read = segment_sum(segment_softmax(scores, graph, 2) * x, graph, 2)
            state = torch.cat([query, read], -1)
        return state

    def truth(self, x, graph):
        state, memory, sites = x.new_zeros(2, 2 * D), None, []
        for _ in range(3):
            memory = self.lstm(state, memory)
            sites.append(_pooled(memory[0] @ x.mT))
            state = torch.cat([memory[0], (sites[-1] @ x)[0, 0]], -1)
        return sites, state


class Transformer(formulas.Model):
    """TransformerConv with features of edges, in two layers one after the other."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads = H
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(2))
        self.edges, self.skip = nn.Linear(5, D, bias=False), nn.Linear(D, D)

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        edges = random_edges()
        return torch.randn(N, D), edges, torch.randn(edges.shape[1], 5)

    def forward(self, x, edges, features):
        source, target = edges
        features = self.edges(features).view(-1, H, D // H)
        for layer in self.qkv:
            q, k, v = (tensor.view(-1, H, D // H) for tensor in layer(x).chunk(3, -1))
            k = k.index_select(-3, source) + features
            scores = (q.index_select(-3, target) * k).sum(dim=-1) / (D // H) ** 0.5
            weights = segment_softmax(scores, target, N)
            messages = (v.index_select(-3, source) + features) * weights.view(-1, H, 1)
            x = segment_sum(messages, target, N).view(-1, D) + self.skip(x)
        return x

    def truth(self, x, edges, features):
        source, target = edges
        between = x.new_zeros(N, N, D)
        between[target, source] = self.edges(features)
        between = between.unflatten(-1, (H, -1)).permute(2, 0, 1, 3)  # (head, target, source, …)
        sites = []
        for layer in self.qkv:
            q, k, v = (tensor.view(N, H, -1).transpose(0, 1) for tensor in layer(x).chunk(3, -1))
            scores = (q[:, :, None] * (k[:, None] + between)).sum(-1) / (D // H) ** 0.5
            sites.append(edge_weights(scores, edges))
            mixed = (sites[-1][0, ..., None] * (v[:, None] + between)).sum(2)
            x = mixed.transpose(0, 1).flatten(1) + self.skip(x)
        return sites, x


class Typed(formulas.Model):
    """HGTConv: keys and values of every head and type are written into an empty tensor."""

    attends = "self"

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.qkv = H, nn.Linear(D, 3 * D)
        self.keys, self.values = (nn.Parameter(torch.randn(H, 3, 3)) for _ in range(2))

    inputs = staticmethod(_inputs)

    def _typed(self, x: Tensor, matrices: Tensor) -> Tensor:
        rows, kind = x.transpose(0, 1).reshape(-1, 3), torch.arange(H).repeat_interleave(N)
        out = rows.new_empty(H * N, 3)
        for head in range(H):
            out[kind == head] = rows[kind == head] @ matrices[head]
        return out.view(H, -1, 3).transpose(0, 1)

    def forward(self, x, edges):
        source, target = edges
        q, k, v = (tensor.reshape(-1, H, 3) for tensor in torch.tensor_split(self.qkv(x), 3, 1))
        k, v = self._typed(k, self.keys), self._typed(v, self.values)
        scores = (q.index_select(0, target) * k.index_select(0, source)).sum(-1) / 2
        weights = segment_softmax(scores, target, N)
        messages = v.index_select(0, source) * weights.view(-1, H, 1)
        return segment_sum(messages.view(-1, D), target, N)

    def truth(self, x, edges):
        q, k, v = (tensor.view(N, H, 3).transpose(0, 1) for tensor in self.qkv(x).chunk(3, -1))
        weights = edge_weights(q @ (k @ self.keys).mT / 2, edges)
        return [weights], dense.merged(dense.mix(weights, (v @ self.values)[None]))[0]


class TypesInSlices(Typed):
    """The same, in order: two slices of the nodes for each head."""

    def _typed(self, x, matrices):
        rows = x.transpose(0, 1).reshape(-1, 3)
        out = rows.new_empty(H * N, 3)
        for head, matrix in enumerate(matrices):
            middle = head * N + 2
            for places in (slice(head * N, middle), slice(middle, head * N + N)):
                out[places] = rows[places] @ matrix
        return out.view(H, -1, 3).transpose(0, 1)


class SortedTypes(Typed):
    """The same, sorted by type before, and put back into their order."""

    def _typed(self, x, matrices):
        rows, kind = x.transpose(0, 1).reshape(-1, 3), torch.arange(N * H) % H
        order = kind.argsort(stable=True)
        rows, ends = rows[order], torch.bincount(kind).cumsum(0).tolist()
        out, unsorted = rows.new_empty(H * N, 3), rows.new_empty(H * N, 3)
        for matrix, start, end in zip(matrices, [0, *ends], ends):
            out[start:end] = rows[start:end] @ matrix
        unsorted[order] = out
        return unsorted.view(H, -1, 3).transpose(0, 1)

    def truth(self, x, edges):
        q, k, v = (tensor.view(N, H, 3).transpose(0, 1) for tensor in self.qkv(x).chunk(3, -1))
        kind = (torch.arange(N * H) % H).view(H, N)
        k, v = (
            (tensor[..., None, :] @ matrices[kind])[..., 0, :]
            for tensor, matrices in ((k, self.keys), (v, self.values))
        )
        weights = edge_weights(q @ k.mT / 2, edges)
        return [weights], dense.merged(dense.mix(weights, v[None]))[0]


class LayersOfEdges(formulas.Model):
    """DNAConv (Fey 2019): along every edge the last layer asks all layers; one more has score 0."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.matrices = H, nn.Parameter(torch.randn(3, H, 3, 3))

    @staticmethod
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(N, 5, D), random_edges()

    @staticmethod
    def _grouped(x: Tensor, matrices: Tensor) -> Tensor:
        mixed = torch.matmul(x.reshape(-1, H, 3).transpose(0, 1), matrices)
        return mixed.transpose(0, 1).contiguous().view(x.shape)

    def forward(self, x, edges):
        last, layers = x.index_select(0, edges[1])[:, -1:], x.index_select(0, edges[0])
        q, k, v = (
            self._grouped(tensor, matrix).view(len(layers), -1, H, 3).transpose(-2, -3)
            for tensor, matrix in zip((last, layers, layers), self.matrices)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / 2
        top = scores.max(-1, keepdim=True)[0].clamp(min=0.0)
        powers = (scores - top).exp()
        weights = powers / (powers.sum(-1, keepdim=True) + (-top).exp())
        return torch.matmul(weights, v).transpose(-3, -2).reshape(-1, D)

    def truth(self, x, edges):
        last, layers = x[edges[1]][:, -1:], x[edges[0]]
        q, k, v = (
            dense.heads(tensor, H) @ matrix
            for tensor, matrix in zip((last, layers, layers), self.matrices)
        )  # (edge, head, layer, width)
        powers = (q @ k.mT / 2).exp()
        weights = powers / (1 + powers.sum(-1, keepdim=True))
        return [weights], dense.merged(dense.mix(weights, v))[:, 0]


KINDS = (Pooling, SetToSet, Transformer, Typed, TypesInSlices, SortedTypes, LayersOfEdges)
TARGETS = [formulas.target(kind, "geometric") for kind in KINDS]
