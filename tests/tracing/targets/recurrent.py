"""Attention outside transformers: decoders that step, pooling, learned queries, graphs, pointers.

A step of a decoder is a site of its own, with one query.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Case, Target, dense

B, S, T, D = 2, 7, 4, 8  # examples, source positions, steps, width


class Bahdanau(nn.Module):
    """Bahdanau et al. 2015: additive scores, the state before the step asks."""

    def __init__(self, product: str):
        super().__init__()
        self.rnn, self.product = nn.GRUCell(2 * D, D), product
        self.w, self.u, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 1, bias=False)

    def forward(self, memory, inputs, hidden):
        state, out, keys = memory[:, -1], [], self.u(memory)
        for step in range(inputs.shape[1]):
            scores = self.v(torch.tanh(self.w(state)[:, None] + keys)).squeeze(2)
            weights = F.softmax(scores.masked_fill(hidden, -torch.inf), dim=1)
            if self.product == "bmm":
                context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            elif self.product == "einsum":
                context = torch.einsum("bs,bsd->bd", weights, memory)
            else:
                context = (weights[..., None] * memory).sum(1)
            state = self.rnn(torch.cat([inputs[:, step], context], -1), state)
            out.append(state)
        return torch.stack(out, 1)


@torch.no_grad()
def _bahdanau(product: str) -> Case:
    model = Bahdanau(product)
    model.v.weight.mul_(4)
    memory, inputs = torch.randn(B, S, D), torch.randn(B, T, D)
    hidden = torch.zeros(B, S, dtype=torch.bool)
    hidden[1, 5:] = True
    truth, out, state = [], [], memory[:, -1]
    for step in range(T):
        scores = torch.empty(B, S, dtype=torch.float64)
        for b in range(B):
            for s in range(S):
                inner = torch.tanh(model.w(state[b]) + model.u(memory[b, s])).double()
                scores[b, s] = inner @ model.v.weight[0].double()
        weights = dense.softmax(scores.masked_fill(hidden, -torch.inf))
        truth.append(weights[:, None, None])
        context = torch.stack([weights[b] @ memory[b].double() for b in range(B)]).float()
        state = model.rnn(torch.cat([inputs[:, step], context], -1), state)
        out.append(state)
    return Case(model, (memory, inputs, hidden), {}, truth, torch.stack(out, 1))


class Luong(nn.Module):
    """Luong et al. 2015: the state after the step asks; input feeding."""

    def __init__(self, score: str):
        super().__init__()
        self.rnn, self.combine = nn.LSTMCell(2 * D, D), nn.Linear(2 * D, D, bias=False)
        self.general = nn.Linear(D, D, bias=False) if score == "general" else nn.Identity()

    def forward(self, memory, inputs):
        attended, carry, out = inputs.new_zeros(len(inputs), D), None, []
        for x in inputs.unbind(1):
            carry = self.rnn(torch.cat([x, attended], -1), carry)
            scores = torch.bmm(self.general(memory), carry[0].unsqueeze(2)).squeeze(2)
            weights = torch.softmax(scores, 1).unsqueeze(1)  # (batch, 1, source)
            context = weights.bmm(memory).squeeze(1)
            attended = torch.tanh(self.combine(torch.cat([context, carry[0]], -1)))
            out.append(attended)
        return torch.stack(out, 1)


@torch.no_grad()
def _luong(score: str) -> Case:
    model, memory, inputs = Luong(score), torch.randn(B, S, D) * 3, torch.randn(B, T, D)
    truth, out, attended, carry = [], [], torch.zeros(B, D), None
    for step in range(T):
        carry = model.rnn(torch.cat([inputs[:, step], attended], -1), carry)
        query, key = carry[0][:, None, None], model.general(memory)[:, None]
        truth.append(dense.weights(query, key, scale=1.0))
        context = dense.mix(truth[-1], memory[:, None])[:, 0, 0].float()
        attended = torch.tanh(model.combine(torch.cat([context, carry[0]], -1)))
        out.append(attended)
    return Case(model, (memory, inputs), {}, truth, torch.stack(out, 1))


class Pooling(nn.Module):
    """A learned vector scores every position; the sentence is their weighted mean."""

    def __init__(self, spelling: str):
        super().__init__()
        self.score, self.spelling = nn.Linear(D, 1), spelling
        self.query = nn.Parameter(torch.randn(D))

    def forward(self, x):
        if self.spelling == "linear":  # (batch, position, 1)
            return (torch.softmax(self.score(x), dim=1) * x).sum(dim=1)
        if self.spelling == "vector":  # Yang et al. 2016
            weights = torch.softmax(torch.tanh(x) @ self.query, dim=-1)
            return torch.einsum("bs,bsd->bd", weights, x)
        weights = torch.softmax(self.score(x).squeeze(-1), dim=-1)
        return torch.bmm(weights[:, None], x)[:, 0]


@torch.no_grad()
def _pooling(spelling: str) -> Case:
    model, x = Pooling(spelling), torch.randn(B, S, D) * 2
    vector = model.query if spelling == "vector" else model.score.weight[0]
    inner = torch.tanh(x) if spelling == "vector" else x
    weights = dense.weights(vector.expand(B, 1, 1, D), inner[:, None], scale=1.0)
    return Case(model, (x,), {}, [weights], dense.mix(weights, x[:, None])[:, 0, 0].float())


class HeadPooling(nn.Module):
    """Several scores for a position: each pools its own slice of the values, or all of them."""

    def __init__(self, sliced: bool):
        super().__init__()
        self.score, self.value, self.sliced = nn.Linear(D, 2), nn.Linear(D, D), sliced

    def forward(self, x):
        weights = self.score(x).softmax(dim=1)  # (batch, position, score)
        if self.sliced:
            return torch.einsum("bsh,bshd->bhd", weights, self.value(x).unflatten(-1, (2, -1)))
        return torch.einsum("bsr,bsd->brd", weights, self.value(x))


@torch.no_grad()
def _head_pooling(sliced: bool) -> Case:
    """Slices make heads. Without them the scores are queries (Lin et al. 2017: hops)."""
    model, x = HeadPooling(sliced), torch.randn(B, S, D) * 2
    weights = dense.softmax(model.score(x).double().transpose(1, 2))  # (batch, score, position)
    weights = weights[:, :, None] if sliced else weights[:, None]
    mixed = dense.mix(weights, dense.heads(model.value(x), 2 if sliced else 1)).float()
    return Case(model, (x,), {}, [weights], mixed[:, :, 0] if sliced else mixed[:, 0])


class LearnedQueries(nn.Module):
    """Set transformer (Lee et al. 2019): inducing points ask the set, the set asks them."""

    def __init__(self):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, 3, D) * 2)
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(D, D) for _ in range(2)) for _ in "qkv")

    def block(self, layer, x, y):
        q, k, v = self.q[layer](x), self.k[layer](y), self.v[layer](y)
        q, k, v = (torch.cat(z.split(D // 2, 2), 0) for z in (q, k, v))  # heads first, in the batch
        weights = torch.softmax(q.bmm(k.transpose(1, 2)) / (D // 2) ** 0.5, 2)
        return torch.cat((q + weights.bmm(v)).split(x.size(0), 0), 2)

    def forward(self, x):
        induced = self.block(0, self.points.repeat(x.size(0), 1, 1), x)
        return self.block(1, x, induced)


@torch.no_grad()
def _learned_queries() -> Case:
    model, x = LearnedQueries(), torch.randn(B, S, D) * 2
    truth, asks, answers = [], model.points.expand(B, -1, -1), x
    for layer in range(2):
        q, k = dense.heads(model.q[layer](asks), 2), dense.heads(model.k[layer](answers), 2)
        truth.append(dense.weights(q, k))
        mixed = dense.mix(truth[-1], dense.heads(model.v[layer](answers), 2)).float()
        asks, answers = x, dense.merged(q + mixed)
    return Case(model, (x,), {}, truth, answers)


class Latents(nn.Module):
    """Perceiver resampler: latents ask positions and latents at once, by SDPA."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, D))
        self.q, self.kv = nn.Linear(D, D, bias=False), nn.Linear(D, 2 * D, bias=False)

    def forward(self, x):
        latents = self.latents.expand(x.size(0), -1, -1)
        keys, values = self.kv(torch.cat([x, latents], 1)).chunk(2, -1)
        q, k, v = (dense.heads(y, 2) for y in (self.q(latents), keys, values))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@torch.no_grad()
def _latents() -> Case:
    model, x = Latents(), torch.randn(B, S, D) * 2
    latents = model.latents.expand(B, -1, -1)
    keys, values = model.kv(torch.cat([x, latents], 1)).chunk(2, -1)
    weights = dense.weights(dense.heads(model.q(latents), 2), dense.heads(keys, 2))
    return Case(
        model, (x,), {}, [weights], dense.merged(dense.mix(weights, dense.heads(values, 2))).float()
    )


class Graph(nn.Module):
    """Veličković et al. 2018, dense: scores are sums of two parts, edges are the mask."""

    def __init__(self):
        super().__init__()
        self.w = nn.Linear(D, D, bias=False)
        self.source, self.target = (nn.Parameter(torch.randn(2, D // 2)) for _ in range(2))

    def forward(self, x, edges):
        h = self.w(x).unflatten(-1, (2, -1))  # (batch, node, head, width)
        left, right = (h * self.target).sum(-1), (h * self.source).sum(-1)
        scores = F.leaky_relu(left[:, :, None] + right[:, None], 0.2)  # (batch, node, node, head)
        scores = scores.masked_fill(~edges[..., None], -9e15)
        return torch.einsum("bijh,bjhd->bihd", F.softmax(scores, dim=2), h).flatten(2)


@torch.no_grad()
def _graph() -> Case:
    model, x = Graph(), torch.randn(B, S, D) * 2
    edges = (torch.rand(B, S, S) < 0.5) | torch.eye(S, dtype=torch.bool)
    h = dense.heads(model.w(x), 2)
    left, right = (
        torch.einsum("bhnd,hd->bhn", h, a).double() for a in (model.target, model.source)
    )
    scores = F.leaky_relu(left[..., None] + right[:, :, None], 0.2)
    weights = dense.softmax(scores.masked_fill(~edges[:, None], -torch.inf))
    return Case(model, (x, edges), {}, [weights], dense.merged(dense.mix(weights, h)).float())


class Pointer(nn.Module):
    """Bello et al. 2016: a glimpse mixes, then a softmax points and mixes nothing."""

    def __init__(self):
        super().__init__()
        self.w, self.u, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Parameter(torch.randn(D) * 2)

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        keys = self.u(memory)
        weights = (torch.tanh(self.w(state)[:, None] + keys) @ self.v).softmax(-1)
        glimpse = torch.bmm(weights[:, None], keys)[:, 0]
        return (torch.tanh(self.w(glimpse)[:, None] + keys) @ self.v).softmax(-1)


@torch.no_grad()
def _pointer() -> Case:
    model, state, memory = Pointer(), torch.randn(B, D), torch.randn(B, S, D)

    def point(asks: Tensor) -> Tensor:
        inner = torch.tanh(model.w(asks)[:, None] + model.u(memory)).double()
        return dense.softmax((inner * model.v.double()).sum(-1))

    first = point(state)
    glimpse = torch.einsum("bs,bsd->bd", first, model.u(memory).double()).float()
    return Case(model, (state, memory), {}, [first[:, None, None]], point(glimpse).float())


_BUILDERS = {
    **{f"bahdanau_{product}": partial(_bahdanau, product) for product in ("bmm", "einsum", "sum")},
    **{f"luong_{score}": partial(_luong, score) for score in ("dot", "general")},
    **{f"pooling_{form}": partial(_pooling, form) for form in ("linear", "vector", "bmm")},
    "pooling_heads": partial(_head_pooling, True),
    "pooling_hops": partial(_head_pooling, False),
    "set_transformer": _learned_queries,
    "latents_sdpa": _latents,
    "graph_dense": _graph,
    "pointer_glimpse": _pointer,
}

TARGETS = [Target(name, "recurrent", build) for name, build in _BUILDERS.items()]
