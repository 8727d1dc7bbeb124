"""One attention, spelled in the many ways that people write it by hand: the products."""

import math

import einops
import torch
import torch.nn.functional as F

from . import Target
from .spelled import first, scores_of, speller

TARGETS: list[Target] = []
spelled = speller(TARGETS)


@spelled()
def matmul(self, q, k, v):
    q, k, v = first(q, k, v)
    scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return torch.matmul(F.softmax(scores, dim=-1), v).transpose(1, 2)


@spelled()
def operator(self, q, k, v):
    q, k, v = first(q / math.sqrt(q.shape[-1]), k, v)
    return (torch.softmax(q @ k.mT, dim=-1) @ v).transpose(1, 2).contiguous()


@spelled()
def bmm(self, q, k, v):
    batch, queries, heads, _ = q.shape
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in first(q, k, v))
    weights = F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1]), dim=-1)
    return torch.bmm(weights, v).view(batch, heads, queries, -1).transpose(1, 2)


@spelled()
def baddbmm(self, q, k, v):
    """As in BLOOM and in older diffusers: the product is added to a tensor, here with beta 0."""
    batch, queries, heads, _ = q.shape
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in first(q, k, v))
    start = torch.zeros(batch * heads, queries, k.shape[1])
    scores = torch.baddbmm(start, q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, queries, -1).transpose(1, 2)


@spelled()
def einsum(self, q, k, v):
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v)


@spelled()
def einsum_keys_before_queries(self, q, k, v):
    scores = torch.einsum("b i h d, b j h d -> b h j i", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("b h j i, b j h d -> b i h d", scores.softmax(dim=-2), v)


@spelled()
def einsum_values_first(self, q, k, v):
    scores = torch.einsum("bkhd,bqhd->bhqk", k, q) / math.sqrt(q.shape[-1])
    return torch.einsum("bkhd,bhqk->bqhd", v, scores.softmax(-1))


@spelled()
def einsum_heads_last(self, q, k, v):
    scores = torch.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bqkh,bkhd->bqhd", scores.softmax(2), v)


@spelled()
def einsum_heads_outermost(self, q, k, v):
    scores = torch.einsum("bqhd,bkhd->hbqk", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("hbqk,bkhd->bqhd", scores.softmax(-1), v)


@spelled()
def head_major(self, q, k, v):
    """As in attention-is-all-you-need-pytorch of 2017: (head * batch) is the first axis."""
    batch, queries, heads, width = q.shape
    q = q.permute(2, 0, 1, 3).contiguous().view(-1, queries, width)  # (h*b) x lq x dk
    k = k.permute(2, 0, 1, 3).contiguous().view(heads * batch, -1, width)
    v = v.permute(2, 0, 1, 3).contiguous().view(heads * batch, -1, width)
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / width**0.5, dim=2)
    output = torch.bmm(weights, v).view(heads, batch, queries, width)
    return output.permute(1, 2, 0, 3).contiguous()


@spelled()
def einops_rearrange(self, q, k, v):
    q, k, v = (einops.rearrange(x, "b n h d -> (b h) n d") for x in (q, k, v))
    weights = (torch.bmm(q, k.mT) * q.shape[-1] ** -0.5).softmax(-1)
    return einops.rearrange(weights @ v, "(b h) n d -> b n h d", h=self.heads)


@spelled()
def einops_einsum(self, q, k, v):
    scores = einops.einsum(q, k, "b i h d, b j h d -> b h i j") / math.sqrt(q.shape[-1])
    return einops.einsum(scores.softmax(dim=-1), v, "b h i j, b j h d -> b i h d")


@spelled()
def multiply_and_sum(self, q, k, v):
    q, k, v = first(q, k, v)
    weights = scores_of(q, k).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2).transpose(1, 2)


@spelled()
def scores_by_multiply_and_sum(self, q, k, v):
    q, k, v = first(q, k, v)
    scores = (q[:, :, :, None] * k[:, :, None]).sum(-1) / math.sqrt(q.shape[-1])
    return (scores.softmax(-1) @ v).transpose(1, 2)


@spelled()
def product_transposed(self, q, k, v):
    """As in SAGAN: values (…, width, key) times the transposed weights."""
    q, k, v = first(q, k, v)
    return torch.matmul(v.mT, scores_of(q, k).softmax(-1).mT).mT.transpose(1, 2)


@spelled(pieces=lambda weights: list(weights.split(1, dim=1)))
def head_by_head(self, q, k, v):
    out = []
    for head in range(self.heads):
        weights = scores_of(q[:, :, head], k[:, :, head]).softmax(-1)  # (batch, query, key)
        out.append(weights @ v[:, :, head])
    return torch.stack(out, 2)


@spelled(pieces=lambda weights: list(weights.split(2, dim=2)))
def queries_in_chunks(self, q, k, v):
    q, k, v = first(q, k, v)
    return torch.cat([scores_of(c, k).softmax(-1) @ v for c in q.split(2, 2)], 2).transpose(1, 2)


@spelled(pieces=lambda weights: [w[None] for w in weights])
def example_by_example(self, q, k, v):
    q, k, v = first(q, k, v)
    return torch.stack([scores_of(*qk).softmax(-1) @ w for *qk, w in zip(q, k, v)]).transpose(1, 2)


@spelled(groups=2)
def grouped_heads(self, q, k, v):
    """Five axes: (batch, group, head of the group, query, key)."""
    q = q.unflatten(2, (2, 2)).permute(0, 2, 3, 1, 4)
    k, v = (x.transpose(1, 2)[:, :, None] for x in (k, v))
    output = torch.softmax(scores_of(q, k), dim=-1) @ v
    return output.flatten(1, 2).transpose(1, 2)


@spelled(groups=2)
def grouped_heads_repeated(self, q, k, v):
    """As in Llama: keys and values are repeated for each head of a group."""
    q, k, v = first(q, k, v)
    k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) for x in (k, v))
    return (F.softmax(scores_of(q, k), -1, dtype=torch.float32) @ v).transpose(1, 2)


@spelled(groups=1)
def multi_query_einsum(self, q, k, v):
    scores = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) / math.sqrt(q.shape[-1])
    return torch.einsum("bhqk,bkd->bqhd", scores.softmax(-1), v[:, :, 0])


@spelled(heads=1)
def single_head(self, q, k, v):
    q, k, v = (x.squeeze(2) for x in (q, k, v))
    return (F.softmax(scores_of(q, k), -1) @ v)[:, :, None]


@spelled(heads=1, pieces=lambda weights: [w[None] for w in weights])
def matrices(self, q, k, v):
    """Two axes only: torch.mm for one sentence at a time."""
    q, k, v = (x.squeeze(2) for x in (q, k, v))
    mixed = [
        torch.mm(torch.mm(a, b.t()).div(a.shape[1] ** 0.5).softmax(1), c)
        for a, b, c in zip(q, k, v)
    ]
    return torch.stack(mixed)[:, :, None]
