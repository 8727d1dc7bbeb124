"""Attention that is rarer, and easily taken for something else."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Target, dense, functions

B, H, N, D = 2, 4, 5, 16
TARGETS: list[Target] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(20, D), nn.Parameter(torch.randn(N, D))
        self.qkv, self.mixing = nn.Linear(D, 3 * D), nn.Parameter(torch.randn(H, H) / 2)
        self.sinks = nn.Parameter(torch.randn(H, 1, 1))
        self.attn = nn.MultiheadAttention(D, H, batch_first=True)
        self.relative = nn.Parameter(torch.randn(N, N, D // H))

    def heads(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, H, D // H)).permute(2, 0, 3, 1, 4)


def unusual(inputs: Callable[[], tuple], truth: Callable) -> Callable[[Callable], Callable]:
    """Add a model: `truth` gives the weights and the output from the model and its input."""

    def add(function: Callable) -> Callable:
        build = functions.builder(Model, function, truth, inputs)
        TARGETS.append(Target(function.__name__, "unusual", build))
        return function

    return add


def _positions() -> tuple[Tensor]:
    return (torch.randn(B, N, D) * 2,)


def _ids() -> tuple[Tensor]:
    return (torch.randint(20, (B, N)),)


def _from_heads(change: Callable = lambda model, scores: dense.softmax(scores)) -> Callable:
    """Truth from the scores of every head; `change` makes the weights from them."""

    def truth(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = model.heads(x).double()
        weights = change(model, torch.einsum("bhqd,bhkd->bhqk", q, k) / 2)
        return weights, dense.mix(weights, v)

    return truth


def _of_words(change: Callable = lambda model, words: words) -> Callable:
    """Truth where the words themselves are query, key and value."""

    def truth(model: Model, ids: Tensor) -> tuple[Tensor, Tensor]:
        words = change(model, model.embedding.weight[ids])[:, None]
        weights = dense.weights(words, words)
        return weights, dense.mix(weights, words)[:, 0]

    return truth


# Values that come from parameters alone, and are values all the same: the ids choose them.


@unusual(_ids, _of_words())
def words_embedded(self, ids):
    words = self.embedding(ids)
    return (words @ words.mT / 4).softmax(-1) @ words


@unusual(_ids, _of_words())
def words_indexed(self, ids):
    words = self.embedding.weight[ids]
    return (words @ words.mT / 4).softmax(-1) @ words


@unusual(_ids, _of_words(lambda model, words: words + model.places))
def words_with_places(self, ids):
    words = F.embedding(ids, self.embedding.weight) + self.places
    return F.scaled_dot_product_attention(words, words, words)


def _objects(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    matrices, biases = model.attn.in_proj_weight.chunk(3), model.attn.in_proj_bias.chunk(3)
    asks = model.places.expand(B, -1, -1)
    q, k = (dense.heads(F.linear(asks, w, b), H) for w, b in zip(matrices[:2], biases))
    v = dense.heads(F.linear(x, matrices[2], biases[2]), H)
    weights = dense.weights(q, k)
    return weights, model.attn.out_proj(dense.merged(dense.mix(weights, v)).float())


@unusual(lambda: (torch.zeros(B, N, D),), _objects)
def object_queries(self, x):
    """DETR's first decoder layer: learned objects look at each other; the values are zeros."""
    asks = x + self.places
    return self.attn(asks, asks, x)[0]


@unusual(lambda: (torch.zeros(B, N, D),), _objects)
def object_queries_lean(self, x):
    asks = x + self.places
    return self.attn(asks, asks, x, need_weights=False)[0]


def _placed_objects(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    learned = model.places.expand(B, -1, -1)
    q, k, _ = model.heads(learned + x).double()
    weights = dense.weights(q, k)
    return weights, dense.mix(weights, model.heads(learned)[2].double())


@unusual(_positions, _placed_objects)
def placed_objects(self, x):
    """Grounding DINO's first decoder layer: values are learned, the input only tells places."""
    learned = self.places.repeat(B, 1, 1)
    q, k, _ = self.heads(learned + x)
    v = self.heads(learned)[2]
    return (q @ k.mT / 2).softmax(-1) @ v


# Softmaxes with something more.


def _with_sink(model: Model, scores: Tensor) -> Tensor:
    sinks = model.sinks.double().expand(B, H, N, 1)
    return dense.softmax(torch.cat([scores, sinks], -1))[..., :-1]


@unusual(_positions, _from_heads(_with_sink))
def sink(self, x):
    """gpt-oss: a learned score beside the keys takes its share, and is dropped."""
    q, k, v = self.heads(x)
    scores = torch.cat([q @ k.mT / 2, self.sinks.expand(B, H, N, 1)], -1)
    return scores.softmax(-1)[..., :-1] @ v


@unusual(_positions, _from_heads(lambda _, s: s.exp() / (1 + s.exp().sum(-1, keepdim=True))))
def off_by_one(self, x):
    q, k, v = self.heads(x)
    powers = (q @ k.mT / 2).exp()
    return (powers / (1 + powers.sum(-1, keepdim=True))) @ v


@unusual(_positions, _from_heads(lambda _, s: dense.softmax(3 * torch.tanh(s / 3))))
def softcap(self, x):
    q, k, v = self.heads(x)
    return (3 * torch.tanh(q @ k.mT / 2 / 3)).softmax(-1) @ v


@unusual(_positions, _from_heads())
def softmin(self, x):
    q, k, v = self.heads(x)
    return F.softmin(-(q @ k.mT) / 2, dim=-1) @ v


def _three_strongest(_: Model, scores: Tensor) -> Tensor:
    least = scores.topk(3, -1).values[..., -1:]
    return dense.softmax(scores.masked_fill(scores < least, -torch.inf))


@unusual(_positions, _from_heads(_three_strongest))
def strongest_only(self, x):
    q, k, v = self.heads(x)
    scores = q @ k.mT / 2
    least = scores.topk(3, -1).values[..., -1:]
    return scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v


def _after_the_fact(_: Model, scores: Tensor) -> Tensor:
    weights = dense.softmax(scores) * torch.ones(N, N).tril()
    return weights / weights.sum(-1, keepdim=True)


@unusual(_positions, _from_heads(_after_the_fact))
def masked_and_renormalised(self, x):
    q, k, v = self.heads(x)
    weights = (q @ k.mT / 2).softmax(-1) * torch.ones(N, N).tril()
    return (weights / weights.sum(-1, keepdim=True)) @ v


@unusual(
    _positions,
    _from_heads(lambda m, s: torch.einsum("bhqk,hg->bgqk", dense.softmax(s), m.mixing.double())),
)
def talking_heads(self, x):
    """Shazeer et al. 2020: heads are mixed after the softmax; the mixture mixes the values."""
    q, k, v = self.heads(x)
    weights = torch.einsum("bhqk,hg->bgqk", (q @ k.mT / 2).softmax(-1), self.mixing)
    return weights @ v


# Products with something more.


def _twice(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    weights, once = _from_heads()(model, x)
    return weights, weights @ once


@unusual(_positions, _twice)
def weights_used_twice(self, x):
    """One attention, not two."""
    q, k, v = self.heads(x)
    weights = (q @ k.mT / 2).softmax(-1)
    return weights @ (weights @ v)


def _shaw(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = model.heads(x).double()
    relative = model.relative.double()
    scores = torch.einsum("bhqd,bhqkd->bhqk", q, k[:, :, None] + relative) / 2
    weights = dense.softmax(scores)
    return weights, torch.einsum("bhqk,bhqkd->bhqd", weights, v[:, :, None] + relative)


@unusual(_positions, _shaw)
def relative_keys_and_values(self, x):
    """Shaw et al. 2018: the weights also mix learned vectors, which are parameters."""
    q, k, v = self.heads(x)
    scores = q @ k.mT + torch.einsum("bhqd,qkd->bhqk", q, self.relative)
    weights = (scores / 2).softmax(-1)
    return weights @ v + torch.einsum("bhqk,qkd->bhqd", weights, self.relative)


def _one_vector(_: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    weights = dense.weights(x[None, None, :1], x[None, None])
    return weights, dense.mix(weights, x[None, None])[0, 0, 0]


@unusual(lambda: (torch.randn(N, D, requires_grad=True),), _one_vector)
def vectors(self, x):
    """No batch, no heads, one query: matrix times vector."""
    return torch.mv(x.t(), (torch.mv(x, x[0]) / 4).softmax(0))


@unusual(lambda: (torch.randn(N, D, requires_grad=True),), _one_vector)
def vector_times_matrix(self, x):
    return (x @ x[0] / 4).softmax(0) @ x


def _grid(_: Model, image: Tensor) -> tuple[Tensor, Tensor]:
    places = image.flatten(2).mT[:, None]
    weights = dense.weights(places.mean(2, keepdim=True), places, scale=1.0)
    return weights, dense.mix(weights, places)[:, 0, 0]


@unusual(lambda: (torch.randn(B, D, 4, 3, requires_grad=True),), _grid)
def grid_pooling(self, image):
    """Softmax over the places of an image, summed over rows and columns: 12 keys."""
    scores = torch.einsum("bd,bdyx->byx", image.mean((2, 3)), image)
    weights = scores.flatten(1).softmax(-1).view(B, 4, 3)
    return (weights[:, None] * image).sum((2, 3))


def _decoded(model: Model, x: Tensor) -> tuple[list[Tensor], Tensor]:
    q, k, v = model.heads(x).double()
    steps = [dense.weights(q[:, :, t : t + 1], k[:, :, : t + 1]) for t in range(N)]
    return steps, torch.cat([dense.mix(w, v[:, :, : w.shape[-1]]) for w in steps], 2)


@unusual(_positions, _decoded)
def cache_that_grows(self, x):
    out, keys, values = [], x.new_empty(B, H, 0, D // H), x.new_empty(B, H, 0, D // H)
    for step in x.split(1, 1):
        q, k, v = self.heads(step)
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        out.append((q @ keys.mT / 2).softmax(-1) @ values)
    return torch.cat(out, 2)


@unusual(_positions, _decoded)
def cache_written_in_place(self, x):
    """Keys of a step are written over the same buffer that earlier steps were read from."""
    keys, values = x.new_zeros(2, B, H, N, D // H).unbind(0)
    keys, values, out = keys.clone(), values.clone(), []
    for place, step in enumerate(x.split(1, 1)):
        q, k, v = self.heads(step).detach()
        keys[:, :, place : place + 1], values[:, :, place : place + 1] = k, v
        now = slice(0, place + 1)
        out.append(F.scaled_dot_product_attention(q, keys[:, :, now], values[:, :, now]))
    return torch.cat(out, 2)
