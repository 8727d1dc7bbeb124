"""Blocks read from their equations: plain loops over positions, in float64."""

import math

import torch
from torch import Tensor


def normed(norm, x: Tensor) -> Tensor:
    """Layer norm of each row of (position, width)."""
    rows = []
    for row in x:
        centred = row - sum(row) / len(row)
        spread = sum(centred * centred) / len(row)
        rows.append(centred / math.sqrt(float(spread) + norm.eps) * norm.weight + norm.bias)
    return torch.stack(rows)


def mixed(queries: Tensor, keys: Tensor, values: Tensor, scale: float, sees) -> Tensor:
    """Each query's softmax over the keys it sees, times their values; 0 where it sees none."""
    rows = []
    for i, query in enumerate(queries):
        seen = [j for j in range(len(keys)) if sees(i, j)]
        powers = [math.exp(scale * float(query @ keys[j])) for j in seen]
        row = torch.zeros_like(values[0])
        for power, j in zip(powers, seen):
            row = row + power / sum(powers) * values[j]
        rows.append(row)
    return torch.stack(rows)


def multi_head(part, x: Tensor, context: Tensor, sees) -> Tensor:
    """Multi-head attention of (position, width) to (context position, width)."""
    queries, keys, values = part.to_query(x), part.to_key(context), part.to_value(context)
    size, heads = part.head_width, []
    for head in range(part.n_heads):
        own = slice(head * size, (head + 1) * size)
        pieces = queries[:, own], keys[:, own], values[:, own]
        heads.append(mixed(*pieces, 1 / math.sqrt(size), sees))
    return part.to_output(torch.cat(heads, -1))


def feed_forward(part, x: Tensor) -> Tensor:
    return part.narrow(part.widen(x).clamp(min=0))


def gelu_feed_forward(part, x: Tensor) -> Tensor:
    """With GELU(a) = a Φ(a), Φ the normal distribution function."""
    inner = part.widen(x)
    activated = [
        [float(a) * (1 + math.erf(float(a) / math.sqrt(2))) / 2 for a in row] for row in inner
    ]
    return part.narrow(torch.tensor(activated, dtype=x.dtype))


def always(i: int, j: int) -> bool:
    return True


def until_now(i: int, j: int) -> bool:
    return j <= i


def encoder_block(block, x: Tensor, *, pre: bool, sees=always) -> Tensor:
    """One example (position, width) through an encoder block of multi-head parts."""
    first, second = block.self_attention, block.feed_forward
    if pre:
        into = normed(first.norm, x)
        x = x + multi_head(first.part, into, into, sees)
        return x + feed_forward(second.part, normed(second.norm, x))
    x = normed(first.norm, x + multi_head(first.part, x, x, sees))
    return normed(second.norm, x + feed_forward(second.part, x))


def decoder_block(block, x: Tensor, context: Tensor, *, pre: bool, joined: bool) -> Tensor:
    """One example through a decoder block; `joined`: the context beside the state, projected."""
    first, second, third = block.self_attention, block.cross_attention, block.feed_forward

    def with_context(x: Tensor, answer: Tensor) -> Tensor:
        if not joined:
            return x + answer
        weight, bias = second.join.project.weight, second.join.project.bias
        width = answer.shape[1]
        return answer @ weight[:, :width].T + x @ weight[:, width:].T + bias

    if pre:
        into = normed(first.norm, x)
        x = x + multi_head(first.part, into, into, until_now)
        into = normed(second.norm, x)
        x = with_context(x, multi_head(second.part, into, context, always))
        return x + feed_forward(third.part, normed(third.norm, x))
    x = normed(first.norm, x + multi_head(first.part, x, x, until_now))
    x = normed(second.norm, with_context(x, multi_head(second.part, x, context, always)))
    return normed(third.norm, x + feed_forward(third.part, x))


def cross_block(block, x: Tensor, context: Tensor, sees=always) -> Tensor:
    """MAB(X, Y) of the Set Transformer, equations 6 and 7, for one example."""
    first, second = block.cross_attention, block.feed_forward
    x = normed(first.norm, x + multi_head(first.part, x, context, sees))
    return normed(second.norm, x + feed_forward(second.part, x))


def cross_attend(block, latents: Tensor, inputs: Tensor, sees=always) -> Tensor:
    """The Perceiver's cross-attend module and its dense block, appendix C, for one example."""
    first, second = block.cross_attention, block.feed_forward
    keys = normed(block.context_norm, inputs)
    latents = latents + multi_head(first.part, normed(first.norm, latents), keys, sees)
    return latents + gelu_feed_forward(second.part, normed(second.norm, latents))


def latent_layer(block, latents: Tensor) -> Tensor:
    """One self-attention layer of the latents and its dense block, appendix C."""
    first, second = block.self_attention, block.feed_forward
    into = normed(first.norm, latents)
    latents = latents + multi_head(first.part, into, into, always)
    return latents + gelu_feed_forward(second.part, normed(second.norm, latents))
