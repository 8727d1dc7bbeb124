"""Tensors that change in place, and caches of every kind: each record has its own keys."""

import random
from contextlib import suppress

import pytest
import torch
from capture_models import Ring, fused, words
from capture_ways import PATHS, check, every_kind
from torch import nn
from torch.nn import functional as F

import regard
from regard.errors import StateError


def test_changed_during_the_capture():
    """What is held is copied before the model overwrites it."""

    class Reuses(nn.Module):
        def forward(self, x):
            key = x.clone()
            out = F.scaled_dot_product_attention(x, key, key)
            key.zero_()
            weights = (x @ x.mT).softmax(-1)
            out = out + weights @ x
            weights.zero_()
            return out

    model, x = Reuses(), words(1, 2, 5, 4)
    with torch.no_grad(), regard.capture(model) as trace:
        model(x)
    check(trace, [(x @ x.mT / 2).softmax(-1), (x @ x.mT).softmax(-1)])


@every_kind
def test_changed_after_the_capture(build):
    """Then nobody copies, and the record says so instead of answering wrongly."""
    model, x = build(1), words(2, 5, 8)
    with torch.no_grad():
        trace = regard.trace(model, x)
        kept = trace[0].weights().clone()
        recipe = trace[0].recipe
        held = recipe.key if build is fused else recipe.matrix
        held.add_(1)
    asked = (
        lambda r: r.weights(),
        lambda r: r.reduce(regard.Entropy()),
        lambda r: r.to("meta"),
        lambda r: r.with_weights(),
        lambda r: r.recipe,
    )
    for ask in asked:
        with pytest.raises(StateError, match="changed in place after it was recorded"):
            ask(trace[0])
    with torch.no_grad(), regard.capture(model, keep="weights") as safe:
        model(x)
    torch.testing.assert_close(safe[0].weights(), kept)


class Grows(nn.Module):
    """A cache that grows by concatenation."""

    def __init__(self):
        super().__init__()
        self.project, self.keys = nn.Linear(8, 16), None
        self.num_heads, self.every = 2, []

    def forward(self, x):
        query, key = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.project(x).chunk(2, -1)
        )
        self.keys = key if self.keys is None else torch.cat([self.keys, key], 2)
        self.every.append((query, self.keys))
        return F.scaled_dot_product_attention(query, self.keys, self.keys)

    def truth(self):
        return [(query @ keys.mT / 2).softmax(-1) for query, keys in self.every]


@pytest.mark.parametrize("path", PATHS)
def test_a_growing_cache(path):
    model = Grows()
    with torch.no_grad(), regard.capture(model, path=path) as trace:
        for step, length in enumerate((4, 1, 2, 1, 1)):
            model(words(1, length, 8, seed=step))
    check(trace, model.truth())
    whole = model.every[-1][1]
    fed = sum(query.shape[2] for query, _ in model.every)
    lse = 4 * 2 * fed
    assert trace.nbytes <= 2 * whole.nbytes + 4 * fed * 16 + lse  # not the square of the length


@pytest.mark.parametrize("which", ["key", "query"])
def test_a_growing_cache_that_is_changed_afterwards(which):
    model = Grows()
    with torch.no_grad():
        with regard.capture(model) as trace:
            for step, length in enumerate((4, 1, 1)):
                model(words(1, length, 8, seed=step))
        truth = model.truth()
        query, keys = model.every[0 if which == "key" else 2]
        (keys if which == "key" else query).zero_()
    for record, expected in zip(trace, truth):
        with suppress(StateError):
            torch.testing.assert_close(record.weights(), expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("path", ["auto", "full"])
@pytest.mark.parametrize("lengths", [(1,) * 9, (4, 1, 1, 1, 1), (3, 2, 2)], ids=str)
def test_a_static_cache_is_exact(path, context, lengths):
    """The buffer holds other keys at every step; each record has those of its own."""
    with context():
        model = Ring(6)
        inputs = [words(1, length, 8, seed=step) for step, length in enumerate(lengths)]
        truth = []
        for x in inputs:
            model(x)
            truth.append(model.weigh(x))
        model.begin()
        with regard.capture(model, path=path) as trace:
            for x in inputs:
                model(x)
        check(trace, truth)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("values", [False, True], ids=["", "values"])
@pytest.mark.parametrize("lengths", [(1,) * 9, (6, 1, 1, 1), (4, 1, 1)], ids=str)
def test_a_static_cache_on_the_fused_path_is_right_or_refused(context, values, lengths):
    with context():
        model = Ring(6)
        inputs = [words(1, length, 8, seed=step) for step, length in enumerate(lengths)]
        truth = []
        for x in inputs:
            model(x)
            truth.append(model.weigh(x))
        model.begin()
        with regard.capture(model, path="fused", values=values) as trace:
            for x in inputs:
                model(x)
        for record, expected in zip(trace, truth, strict=True):
            with suppress(StateError):
                torch.testing.assert_close(record.weights(), expected)


class Cache(nn.Module):
    """One layer with a cache of some kind, which says what its weights are when asked to."""

    def __init__(self, kind, room):
        super().__init__()
        self.kind, self.room, self.num_heads = kind, room, 2
        self.project, self.truth = nn.Linear(8, 16), None
        self.begin()

    def begin(self):
        self.keys, self.fed = None, 0

    def change(self, change):
        if self.keys is not None and self.kind in ("grows", "slides"):
            self.keys = change(self.keys)

    def forward(self, x):
        query, new = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.project(x).chunk(2, -1)
        )
        keys, mask = self.take(new)
        if self.truth is not None:
            scores = query @ keys.mT / 2
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            self.truth.append(scores.softmax(-1))
        mixed = F.scaled_dot_product_attention(query, keys, keys, attn_mask=mask)
        return x + mixed.transpose(1, 2).flatten(2)

    def take(self, new):
        if self.kind in ("grows", "slides"):
            self.keys = new if self.keys is None else torch.cat([self.keys, new], 2)
            if self.kind == "slides":
                self.keys = self.keys[:, :, -self.room :]
            return self.keys, None
        if self.keys is None:
            self.keys = torch.zeros(len(new), 2, self.room, 4)
        for step in range(new.shape[2]):
            self.keys[:, :, (self.fed + step) % self.room] = new[:, :, step]
        self.fed += new.shape[2]
        if self.kind == "shows what is there":
            return self.keys[:, :, : self.fed], None
        there = (torch.arange(self.room) < self.fed)[None, None, None]
        return self.keys.clone() if self.kind == "copies" else self.keys, there


def play(layers, seed, room):
    """Prompts and steps, a new text now and then, beams that change places, a cut at the end."""
    chance, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    batch = 2
    for _ in range(chance.randint(3, 8)):
        event = chance.random()
        if event < 0.1:
            batch = chance.randint(1, 3)
            [layer.begin() for layer in layers]
        elif event < 0.25:
            order = torch.tensor([chance.randrange(batch) for _ in range(batch)])
            [layer.change(lambda keys, order=order: keys[order]) for layer in layers]
        elif event < 0.35:
            [layer.change(lambda keys: keys[:, :, :-1]) for layer in layers]
        length = chance.choice([1, 1, 1, 2, chance.randint(1, room)])
        layers(torch.randn(batch, length, 8, generator=numbers))


@pytest.mark.parametrize("path", ["auto", "full"])
@pytest.mark.parametrize(
    "context", [torch.inference_mode, pytest.param(torch.no_grad, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("kind", ["grows", "slides", "ring", "copies", "shows what is there"])
def test_caches_of_any_kind(kind, context, path):
    """Whatever happens to a cache, every record has the keys of its own call."""
    for seed in range(12):
        room = 3 + seed % 6
        with context():
            model = nn.Sequential(Cache(kind, room), Cache(kind, room))
            for layer in model:
                layer.truth = []
            play(model, seed, room)
            truth = [weights for pair in zip(*(layer.truth for layer in model)) for weights in pair]
            for layer in model:
                layer.truth = None
                layer.begin()
            with regard.capture(model, path=path, values=seed % 3 == 0) as trace:
                play(model, seed, room)
            assert len(truth) >= 6
            check(trace, truth)
