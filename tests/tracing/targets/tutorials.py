"""Attention modules in the style of well-known repositories and tutorials, whole."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from . import Case, Target, dense

B, N, H, D = 2, 6, 4, 16


class Annotated(nn.Module):
    """The Annotated Transformer: four linears in a list; the weights stay in `self.attn`."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))
        self.attn = None

    def forward(self, query, key, value, mask=None):
        query, key, value = (
            linear(x).view(x.size(0), -1, H, D // H).transpose(1, 2)
            for linear, x in zip(self.linears, (query, key, value))
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(D // H)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        self.attn = scores.softmax(dim=-1)
        x = torch.matmul(self.attn, value)
        return self.linears[-1](x.transpose(1, 2).contiguous().view(x.size(0), -1, D))


def _annotated() -> Case:
    model, x = Annotated(), torch.randn(B, N, D) * 2
    mask = torch.ones(B, N, N, dtype=torch.bool).tril()
    q, k, v = (dense.heads(linear(x), H) for linear in model.linears[:3])
    weights = dense.weights(q, k, allowed=mask[:, None])
    expected = model.linears[3](dense.merged(dense.mix(weights, v)).float())
    return Case(model, (x, x, x), {"mask": mask}, [weights], expected)


class FusedProjection(nn.Module):
    """One linear for query, key and value, and three ways to cut it up."""

    def __init__(self, cut: str):
        super().__init__()
        self.qkv, self.proj, self.cut = nn.Linear(D, 3 * D), nn.Linear(D, D), cut
        self.register_buffer("bias", torch.tril(torch.ones(9, 9)).view(1, 1, 9, 9))

    def forward(self, x):
        batch, length, width = x.size()
        if self.cut == "split":  # minGPT
            q, k, v = self.qkv(x).split(width, dim=2)
            q, k, v = (y.view(batch, length, H, width // H).transpose(1, 2) for y in (q, k, v))
        elif self.cut == "unbind":  # timm
            qkv = self.qkv(x).reshape(batch, length, 3, H, width // H).permute(2, 0, 3, 1, 4)
            q, k, v = qkv.unbind(0)
        else:  # lucidrains
            q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=H) for y in self.qkv(x).chunk(3, -1))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(batch, length, width))


def _fused_projection(cut: str) -> Case:
    model, x = FusedProjection(cut), torch.randn(B, N, D) * 2
    q, k, v = (dense.heads(y, H) for y in model.qkv(x).chunk(3, -1))
    weights = dense.weights(q, k, allowed=torch.ones(N, N).tril().bool())
    return Case(model, (x,), {}, [weights], model.proj(dense.merged(dense.mix(weights, v)).float()))


class BertLike(nn.Module):
    """Old BERT: `transpose_for_scores`, an additive mask, and (context, weights) as a result."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        return x.view(*x.size()[:-1], H, D // H).permute(0, 2, 1, 3)

    def forward(self, hidden, attention_mask):
        mixed_query = self.query(hidden)
        key = self.transpose_for_scores(self.key(hidden))
        value = self.transpose_for_scores(self.value(hidden))
        query = self.transpose_for_scores(mixed_query)
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(D // H)
        scores = scores + (1.0 - attention_mask[:, None, None, :]) * -10000.0
        probs = self.dropout(nn.Softmax(dim=-1)(scores))
        context = torch.matmul(probs, value).permute(0, 2, 1, 3).contiguous()
        return context.view(*context.size()[:-2], D), probs


def _bert_like() -> Case:
    model, x = BertLike().eval(), torch.randn(B, N, D) * 2
    keep = torch.ones(B, N)
    keep[1, 4:] = 0
    q, k, v = (dense.heads(p(x), H) for p in (model.query, model.key, model.value))
    weights = dense.weights(q, k, allowed=keep.bool()[:, None, None])
    expected = dense.merged(dense.mix(weights, v)).float()
    return Case(model, (x, keep), {}, [weights], (expected, weights.float()))


class HeadMajor(nn.Module):
    """attention-is-all-you-need-pytorch (2017): heads first, residual, norm, (output, attn)."""

    def __init__(self):
        super().__init__()
        self.w_qs, self.w_ks, self.w_vs = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.fc, self.layer_norm = nn.Linear(D, D), nn.LayerNorm(D)
        self.softmax, self.dropout = nn.Softmax(dim=2), nn.Dropout(0.3)

    def forward(self, q, k, v, mask=None):
        size, len_q, _ = q.size()
        residual, width = q, D // H
        q, k, v = self.w_qs(q), self.w_ks(k), self.w_vs(v)
        q, k, v = (
            x.view(size, x.size(1), H, width).permute(2, 0, 1, 3).contiguous().view(-1, n, width)
            for x, n in ((q, len_q), (k, k.size(1)), (v, v.size(1)))
        )  # (n*b) x l x d
        attn = torch.bmm(q, k.transpose(1, 2)) / width**0.5
        if mask is not None:
            attn = attn.masked_fill(mask.repeat(H, 1, 1), -torch.inf)
        attn = self.dropout(self.softmax(attn))
        output = torch.bmm(attn, v).view(H, size, len_q, width)
        output = output.permute(1, 2, 0, 3).contiguous().view(size, len_q, -1)
        return self.layer_norm(self.fc(output) + residual), attn


def _head_major(layers: int) -> Case:
    """More than one layer, one after the other, as a list: sites come in order."""
    stack = nn.ModuleList(HeadMajor() for _ in range(layers)).eval()
    model = Stacked(stack)
    x, memory = torch.randn(B, N, D) * 2, torch.randn(B, N + 2, D) * 2
    hidden = torch.zeros(B, N, N + 2, dtype=torch.bool)
    hidden[0, :, 5:] = True
    truth, y = [], x
    with torch.no_grad():
        for layer in stack:
            q, k, v = (
                dense.heads(p, H) for p in (layer.w_qs(y), layer.w_ks(memory), layer.w_vs(memory))
            )
            truth.append(dense.weights(q, k, allowed=~hidden[:, None]))
            mixed = dense.merged(dense.mix(truth[-1], v)).float()
            y = layer.layer_norm(layer.fc(mixed) + y)
    return Case(model, (x, memory, hidden), {}, truth, y)


class Stacked(nn.Module):
    def __init__(self, layers: nn.ModuleList):
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        seen = []
        for layer in self.layers:
            x, weights = layer(x, memory, memory, mask)
            seen.append(weights)
        return x, seen


class Window(nn.Module):
    """Swin: windows in the batch axis, a learned relative bias, a shift mask for each window."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.table = nn.Parameter(torch.randn(2 * N - 1, H))
        self.register_buffer("index", torch.arange(N)[:, None] - torch.arange(N) + N - 1)

    def forward(self, x, mask):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, H, width // H).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0] * (width // H) ** -0.5, qkv[1], qkv[2]
        bias = self.table[self.index.view(-1)].view(length, length, -1).permute(2, 0, 1)
        attn = q @ k.transpose(-2, -1) + bias.contiguous().unsqueeze(0)
        windows = mask.shape[0]
        attn = attn.view(batch // windows, windows, H, length, length) + mask[None, :, None]
        attn = attn.view(-1, H, length, length).softmax(-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(batch, length, width))


def _window() -> Case:
    windows = 3
    model, x = Window(), torch.randn(B * windows, N, D) * 2
    mask = torch.where(torch.rand(windows, N, N) < 0.2, -100.0, 0.0)
    q, k, v = (dense.heads(y, H) for y in model.qkv(x).chunk(3, -1))
    bias = model.table.detach()[model.index].permute(2, 0, 1) + mask.repeat(B, 1, 1)[:, None]
    weights = dense.weights(q, k, bias=bias)
    expected = model.proj(dense.merged(dense.mix(weights, v)).float())
    return Case(model, (x, mask), {}, [weights], expected)


class T5Like(nn.Module):
    """T5: no scale; the bias of the first layer serves the second."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(D, D, bias=False) for name in "qkvo"}) for _ in range(2)
        )
        self.relative = nn.Embedding(2 * N - 1, H)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        bias = self.relative(places[None, :] - places[:, None] + N - 1).permute(2, 0, 1)[None]
        for layer in self.layers:
            q, k, v = (layer[name](x).view(B, -1, H, D // H).transpose(1, 2) for name in "qkv")
            scores = torch.matmul(q, k.transpose(3, 2))
            scores += bias
            weights = F.softmax(scores.float(), dim=-1).type_as(scores)
            x = x + layer["o"](torch.matmul(weights, v).transpose(1, 2).reshape(B, -1, D))
        return x


def _t5_like() -> Case:
    model, x = T5Like(), torch.randn(B, N, D)
    places = torch.arange(N)
    bias = model.relative.weight.detach()[places - places[:, None] + N - 1].permute(2, 0, 1)
    truth, y = [], x
    with torch.no_grad():
        for layer in model.layers:
            q, k, v = (dense.heads(layer[name](y), H) for name in "qkv")
            truth.append(dense.weights(q, k, bias=bias, scale=1.0))
            y = y + layer["o"](dense.merged(dense.mix(truth[-1], v)).float())
    return Case(model, (x,), {}, truth, y)


class Cosine(nn.Module):
    """Swin v2 and others: normalised queries and keys, a learned temperature for each head."""

    def __init__(self):
        super().__init__()
        self.qkv, self.temperature = nn.Linear(D, 3 * D), nn.Parameter(torch.rand(H, 1, 1) * 3)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        weights = (scores * self.temperature.exp()).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


def _cosine() -> Case:
    model, x = Cosine(), torch.randn(B, N, D)
    q, k, v = (dense.heads(y.detach(), H) for y in model.qkv(x).chunk(3, -1))
    q = q / q.norm(dim=-1, keepdim=True) * model.temperature.detach().exp()
    weights = dense.weights(q, k / k.norm(dim=-1, keepdim=True), scale=1.0)
    return Case(model, (x,), {}, [weights], dense.merged(dense.mix(weights, v)).float())


TARGETS = [
    Target("tutorial_annotated_transformer", "tutorials", _annotated),
    Target("tutorial_min_gpt", "tutorials", partial(_fused_projection, "split")),
    Target("tutorial_timm", "tutorials", partial(_fused_projection, "unbind")),
    Target("tutorial_lucidrains", "tutorials", partial(_fused_projection, "chunk")),
    Target("tutorial_bert", "tutorials", _bert_like),
    Target("tutorial_head_major", "tutorials", partial(_head_major, 1)),
    Target("tutorial_head_major_stack", "tutorials", partial(_head_major, 3)),
    Target("tutorial_swin_window", "tutorials", _window),
    Target("tutorial_t5", "tutorials", _t5_like),
    Target("tutorial_cosine", "tutorials", _cosine),
]
