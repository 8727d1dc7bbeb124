"""The encoder over tokens alone answers as the one over padding does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from regard.mechanisms.positions import Rotary
from regard.translate.models import transformer as module
from regard.translate.models.build import ModelConfig, build
from regard.translate.models.transformer_tokens import Packing, packs

LENGTHS = [5, 2, 1, 4]


def transformer(dtype=torch.float32, **options):
    torch.manual_seed(0)
    given = {"hidden": 12, "layers": 3, "heads": 3, "feed_forward": 20, "dropout": 0.3}
    model = build(ModelConfig("transformer", **{**given, **options}), 11, 13)
    for parameter in model.parameters():  # biases are 0 in a new model
        nn.init.normal_(parameter, std=0.3)
    return model.eval().to(dtype)


def sentences(lengths=LENGTHS):
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    torch.manual_seed(1)
    return torch.randint(4, 11, mask.shape) * mask, mask


@pytest.fixture
def packed(monkeypatch):
    """How often the encoder took tokens alone."""
    calls = []

    def counted(*given):
        calls.append(given)
        return whole(*given)

    whole = module.encode_packed
    monkeypatch.setattr(module, "encode_packed", counted)
    return calls


def both(model, source, mask, monkeypatch):
    """What the model makes of the sources without padding, and with it."""
    alone = model.encode(source, mask)
    monkeypatch.setattr(module, "packs", lambda *blocks: False)
    return alone, model.encode(source, mask)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.1)]
)
def test_memory_is_that_of_the_padded_batch(norm, dtype, near, packed, monkeypatch):
    source, mask = sentences()
    with torch.no_grad():
        alone, padded = both(transformer(dtype, norm=norm), source, mask, monkeypatch)
    assert len(packed) == 1
    for one, other in zip(alone.memory, padded.memory, strict=True):
        for name in ("key", "value"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine.shape == theirs.shape and mine.dtype == dtype
            real = mask[:, None, :, None].expand_as(mine)
            torch.testing.assert_close(mine[real], theirs[real], atol=near, rtol=near)
            assert mine.isfinite().all()


def test_gradients_are_those_of_the_padded_batch(packed, monkeypatch):
    source, mask = sentences()
    model = transformer(torch.float64)
    target = torch.randint(4, 13, (len(source), 3))
    found = []
    for encoded in both(model, source, mask, monkeypatch):
        model.logits(model.decode(encoded, target).features).square().sum().backward()
        found.append([one.grad.clone() for one in model.parameters()])
        model.zero_grad()
    assert len(packed) == 1
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


def test_what_is_wrong_with_a_sentence_stays_there(packed):
    source, mask = sentences()
    model = transformer()
    before = model.encode(source, mask)
    with torch.no_grad():
        model.embeddings.source.weight[source[1, 0]] = torch.nan
    after = model.encode(source, mask)
    broken = (source == source[1, 0]).any(1)
    assert broken.any() and not broken.all() and len(packed) == 2
    for one, other in zip(before.memory, after.memory, strict=True):
        assert torch.equal(one.key[~broken], other.key[~broken])
        assert other.key[broken].isnan().any()


@pytest.mark.parametrize("what", ["training", "weights", "little padding", "no token", "nothing"])
def test_padding_is_kept_where_it_must_be_or_may_be(what, packed):
    lengths = {"little padding": [40, 39, 40], "no token": [5, 0, 2]}.get(what, LENGTHS)
    source, mask = sentences(lengths)
    if what == "nothing":
        source, mask = source[:0], mask[:0]
    model = transformer().train(what == "training")
    encoded = model.encode(source, mask, weights=what == "weights")
    assert not packed
    assert list(encoded.weights) == (["0.self", "1.self", "2.self"] if what == "weights" else [])


def _other_feed_forward(model):
    model.encoder.layers[1].feed_forward.part = nn.Linear(12, 12)


def _other_self_attention(model):
    model.encoder.layers[2].self_attention.part.position = Rotary()


def _other_cross_attention(model):
    model.decoder.layers[0].cross_attention.part.position = Rotary()


@pytest.mark.parametrize(
    "change", [_other_feed_forward, _other_self_attention, _other_cross_attention]
)
def test_parts_that_may_look_at_places_are_given_them(change):
    model = transformer(heads=2)
    assert packs(model.encoder.layers, model.decoder.layers)
    change(model)
    assert not packs(model.encoder.layers, model.decoder.layers)


def test_packing_and_back():
    _, mask = sentences()
    packing = Packing(mask)
    x = torch.randn(*mask.shape, 6)
    packed = packing.pack(x)
    assert torch.equal(packed[0], x[mask])
    heads = packing.unpack_heads(packed.unflatten(-1, (2, 3)).transpose(1, 2))
    assert heads.shape == (4, 2, 5, 3)
    back = heads.transpose(1, 2).flatten(2)
    assert torch.equal(back[mask], x[mask])
    assert torch.equal(back[1, 2:], x[1, :1].expand(3, 6))  # its own first token
