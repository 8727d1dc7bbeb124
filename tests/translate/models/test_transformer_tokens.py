"""The encoder over tokens alone answers as the one over padding does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import regard
from regard.mechanisms import Heads, MultiHead, Scoring, Sparsemax
from regard.mechanisms.positions import Rotary
from regard.translate.models import transformer as module
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.transformer_tokens import Packing
from regard.translate.search import SearchOptions, beam_search

LENGTHS = [5, 2, 1, 4]


def transformer(dtype=torch.float32, **options):
    torch.manual_seed(0)
    given = {"hidden": 12, "layers": 3, "heads": 3, "feed_forward": 20, "dropout": 0.3}
    model = build_model(ModelConfig("transformer", **{**given, **options}), 11, 13)
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


def both(model, source, mask):
    """What the model makes of the sources without padding, and with it."""
    return model.read(source, mask), model.encode(source, mask)


def names(model, *given):
    """What a capture of reading these sources calls the attentions."""
    with regard.capture(model) as trace:
        model.read(*given)
    return list(trace.keys())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.02)]
)
def test_memory_is_that_of_the_padded_batch(norm, dtype, near, packed):
    source, mask = sentences()
    with torch.no_grad():
        same_memory(*both(transformer(dtype, norm=norm), source, mask), mask, near)
    assert len(packed) == 1


def same_memory(alone, padded, mask, near):
    for one, other in zip(alone.memory, padded.memory, strict=True):
        for name in ("key", "value"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            real = mask[:, None, :, None].expand_as(mine)
            torch.testing.assert_close(mine[real], theirs[real], atol=near, rtol=near)
            assert mine.isfinite().all()


def _grouped(part):
    return MultiHead(12, Heads(6, n_groups=2))


def _wide(part):
    return MultiHead(12, Heads(3, head_width=5, value_width=7))


def _normed(part):
    return MultiHead(12, 3, scoring=Scoring(norms=(nn.RMSNorm(4), nn.RMSNorm(4))))


@pytest.mark.parametrize("other", [_grouped, _wide, _normed])
def test_other_heads(other, packed):
    model = transformer(torch.float64)
    for block in model.encoder.layers:
        block.self_attention.part = other(block.self_attention.part).double().eval()
    same_memory(*both(model, *sentences()), sentences()[1], 1e-12)
    assert len(packed) == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"scoring": Scoring(softcap=2.0)},
        {"scoring": Scoring(scale=1.0)},
        {"scoring": Scoring(sinks=True)},
        {"gate": nn.Linear(12, 3)},
        {"normaliser": Sparsemax()},
    ],
    ids=["softcap", "scale", "sinks", "gate", "normaliser"],
)
def test_attention_that_is_more_than_dot_products_is_not_packed(parts, packed):
    model = transformer(torch.float64)
    for block in model.encoder.layers:
        block.self_attention.part = MultiHead(12, 3, **parts).double().eval()
    both(model, *sentences())
    assert not packed


def test_a_mask_with_holes_and_autocast(packed):
    source, mask = sentences()
    mask[0, 2] = False
    model = transformer()
    same_memory(*both(model, source, mask), mask, 1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        same_memory(*both(model, source, mask), mask, 0.05)
    assert len(packed) == 2


def test_gradients_are_those_of_the_padded_batch(packed):
    source, mask = sentences()
    model = transformer(torch.float64)
    target = torch.randint(4, 13, (len(source), 3))
    found = []
    for encoded in both(model, source, mask):
        model.logits(model.decode(encoded, target).features).square().sum().backward()
        found.append([one.grad.clone() for one in model.parameters()])
        model.zero_grad()
    assert len(packed) == 1
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("broken", [0, 1])
def test_what_is_wrong_with_a_sentence_stays_there(broken, packed):
    source, mask = sentences()
    source[broken, 0] = 10
    source[torch.arange(4) != broken] -= (source == 10)[torch.arange(4) != broken].long()
    model = transformer()
    before = model.read(source, mask)
    with torch.no_grad():
        model.embeddings.source.weight[10] = torch.nan
    after = model.read(source, mask)
    others = torch.arange(4) != broken
    assert len(packed) == 2
    for one, other in zip(before.memory, after.memory, strict=True):
        assert torch.equal(one.key[others], other.key[others])
        assert other.key[broken].isnan().any()


@pytest.mark.parametrize(
    ("lengths", "packs_it"),
    [([10, 9, 8], True), ([10, 10, 8], False), ([5, 0, 2], False), ([3, 3], False)],
)
def test_padding_is_kept_where_there_is_little_of_it_or_nothing_else(lengths, packs_it, packed):
    source, mask = sentences(lengths)  # 10 % of the first are padding
    transformer().read(source, mask)
    assert bool(packed) is packs_it


def test_no_sentence_and_left_padding(packed):
    source, mask = sentences()
    model = transformer()
    assert model.read(source[:0], mask[:0]).mask.shape == (0, 5)
    model.read(source.flip(1), mask.flip(1))
    assert not packed


class Mixing(nn.Module):
    """Adds up neighbouring positions."""

    def forward(self, x):
        return x + x.roll(1, dims=-2)


def _feed_forward(model):
    model.encoder.layers[1].feed_forward.part = Mixing()


def _activation(model):
    model.encoder.layers[1].feed_forward.part.activation = Mixing()


def _norm(model):
    model.encoder.layers[1].self_attention.norm = Mixing()


def _last_norm(model):
    model.encoder.norm = Mixing()


def _join(model):
    model.encoder.layers[1].self_attention.join = Joined()


class Joined(nn.Module):
    def forward(self, x, answer):
        return x + answer.roll(1, dims=-2)


def _self_attention(model):
    model.encoder.layers[2].self_attention.part.position = Rotary()


def _cross_attention(model):
    model.decoder.layers[0].cross_attention.part.position = Rotary()


def _hook(model):
    model.encoder.layers[0].feed_forward.part.register_forward_hook(lambda *given: None)


def _hook_of_a_query(model):
    model.encoder.layers[0].self_attention.part.to_query.register_forward_pre_hook(lambda *g: None)


def _stand_in(model):
    part = model.encoder.layers[0].self_attention.part
    part.forward = part.forward


def _trained(model):
    model.encoder.train()


@pytest.mark.parametrize(
    "change",
    [
        *(_feed_forward, _activation, _norm, _last_norm, _join, _self_attention, _cross_attention),
        *(_hook, _hook_of_a_query, _stand_in, _trained),
    ],
)
def test_what_may_see_places_or_is_watched_is_given_the_batch(change, packed):
    model = transformer(heads=2)
    change(model)
    model.read(*sentences())
    assert not packed


def test_a_capture_names_the_same_attentions_in_every_batch(packed):
    model, (source, mask) = transformer(), sentences()
    whole = names(model, source.clamp_min(4), torch.ones_like(mask))
    assert (
        whole
        == names(model, source, mask)
        == [f"encoder.blocks.{layer}.self_attention.part" for layer in range(3)]
    )
    assert not packed


def test_a_capture_of_a_search_names_every_attention():
    model, (source, mask) = transformer(), sentences()
    with regard.capture(model) as trace:
        beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    found = {record.site.name.split("#")[0] for record in trace}
    assert found == {
        *(f"encoder.blocks.{layer}.self_attention.part" for layer in range(3)),
        *(f"decoder.blocks.{layer}.self_attention.part" for layer in range(3)),
        *(f"decoder.blocks.{layer}.cross_attention.part" for layer in range(3)),
    }


def test_a_stand_in_for_an_attention_is_heard_in_a_search():
    model, (source, mask) = transformer(), sentences()
    before = beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    part = model.decoder.layers[1].cross_attention.part
    own = part.forward

    def louder(*given, **options):
        attended = own(*given, **options)
        return replace(attended, output=attended.output + 9.0)

    part.forward = louder
    after = beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    assert any(
        one[0].log_probability != other[0].log_probability for one, other in zip(before, after)
    )


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
