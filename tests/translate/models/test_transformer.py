"""The Transformer: its two ways to decode, its parts, its options."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.errors import RegardError
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.contract import select
from regard.translate.models.transformer import Positions, sinusoids
from regard.translate.search import SearchOptions, beam_search
from regard.translate.tokens import BEGIN, PAD


def transformer(dtype=torch.float32, sizes=(11, 13), **options):
    torch.manual_seed(0)
    given = {"hidden": 12, "layers": 3, "heads": 3, "feed_forward": 20, "dropout": 0.3}
    config = ModelConfig("transformer", **{**given, **options})
    return build_model(config, *sizes).eval().to(dtype)


def sentences():
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    torch.manual_seed(1)
    return torch.randint(4, 11, (2, 5)) * mask, mask


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tie", ["none", "target"])
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-10), (torch.bfloat16, 0.1)]
)
def test_step_by_step_is_all_at_once(norm, tie, dtype, near):
    model = transformer(dtype, norm=norm, tie=tie)
    encoded = model.encode(*sentences())
    beams, length = 3, 6
    target = torch.randint(3, 13, (2 * beams, length))
    target[:, 0] = BEGIN
    state = model.start(encoded, beams)
    rows = torch.arange(2).repeat_interleave(beams)
    whole = model.decode(encoded.select(rows), target, weights=True)
    logits = model.logits(whole.features)
    for place in range(length):
        stepped = model.step(encoded, state, target[:, place], weights=True)
        state = stepped.state
        assert torch.allclose(stepped.logits, logits[:, place], atol=near)
        for site, heads in model.sites.items():
            assert stepped.weights[site].shape == (2 * beams, heads, 5)
            assert torch.allclose(
                stepped.weights[site], whole.weights[site][:, :, place], atol=near
            )
            assert (stepped.weights[site][beams:, :, 2:] == 0).all()
            assert (whole.weights[site][beams:, :, :, 2:] == 0).all()


def test_states_can_change_places():
    model = transformer()
    encoded = model.encode(*sentences())
    tokens = torch.tensor([BEGIN] * 4)
    state = model.step(encoded, model.start(encoded, 2), tokens).state
    state = model.step(encoded, state, torch.tensor([5, 6, 7, 8])).state
    swapped = select(state, torch.tensor([1, 1, 3, 2]))
    found = model.step(encoded, swapped, torch.tensor([4, 4, 4, 4])).logits
    plain = model.step(encoded, state, torch.tensor([4, 4, 4, 4])).logits
    assert torch.allclose(found, plain[[1, 1, 3, 2]], atol=1e-6)


def test_padding_and_later_tokens_change_nothing():
    model = transformer()
    source, mask = sentences()
    target = torch.tensor([[BEGIN, 5, 6], [BEGIN, 7, 8]])
    whole = model.decode(model.encode(source, mask), target).features
    alone = model.decode(model.encode(source[1:, :2], mask[1:, :2]), target[1:]).features
    assert torch.allclose(whole[1:], alone, atol=1e-5)
    other = source.masked_fill(~mask, 9)
    assert torch.allclose(whole, model.decode(model.encode(other, mask), target).features)
    changed = target.clone()
    changed[:, 2] = 4
    later = model.decode(model.encode(source, mask), changed).features
    assert torch.allclose(whole[:, :2], later[:, :2], atol=1e-6)
    assert not torch.allclose(whole[:, 2], later[:, 2], atol=1e-3)


HOLES = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 0, 0]]).bool()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sentences_are_encoded_as_if_alone_wherever_their_padding_is(norm):
    """Padding on the right, on the left and between tokens: the rest keeps its positions."""
    model = transformer(torch.float64, norm=norm)
    source = torch.randint(4, 11, HOLES.shape)
    encoded = model.encode(source, HOLES)
    x = model.positions(model.embeddings.source(source))
    for sentence, tokens in enumerate(HOLES):
        alone = model.encoder(x[sentence, tokens][None]).output
        for block, memory in zip(model.decoder.layers, encoded.memory, strict=True):
            expected = block.cross_attention.mechanism.fix(alone)
            for batched, single in ((memory.key, expected.key), (memory.value, expected.value)):
                torch.testing.assert_close(batched[sentence, :, tokens], single[0])
                assert batched.isfinite().all()


@pytest.mark.parametrize("broken", [0, 1])
def test_nan_in_a_sentence_stays_in_it(broken):
    model, (source, mask) = transformer(), sentences()
    source = source.masked_fill(source == 10, 9)
    source[broken, 0] = 10
    before = model.encode(source, mask).memory
    with torch.no_grad():
        model.embeddings.source.weight[10] = torch.nan
    after = model.encode(source, mask).memory
    for sound, changed in zip(before, after, strict=True):
        assert torch.equal(sound.key[1 - broken], changed.key[1 - broken])
        assert torch.equal(sound.value[1 - broken], changed.value[1 - broken])
        assert changed.key[broken].isnan().any()


def test_a_batch_without_sentences():
    model, (source, mask) = transformer(), sentences()
    encoded = model.encode(source[:0], mask[:0], weights=True)
    assert [tuple(memory.key.shape) for memory in encoded.memory] == 3 * [(0, 3, 5, 4)]
    assert encoded.weights["2.self"].shape == (0, 3, 5, 5)
    decoded = model.decode(encoded, torch.zeros(0, 4, dtype=torch.long))
    assert decoded.features.shape == (0, 4, 12)
    assert beam_search(model, source[:0], mask[:0]) == []


def test_forward_is_the_logits_at_the_chosen_places():
    model = transformer()
    source, mask = sentences()
    target = torch.tensor([[BEGIN, 5, 6], [BEGIN, 7, PAD]])
    chosen = target != PAD
    logits = model.logits(model.decode(model.encode(source, mask), target).features)
    found = model(source, mask, target, chosen)
    assert torch.allclose(found, logits[chosen], atol=1e-6)


def test_sites_and_encoder_weights_have_names():
    model = transformer()
    assert model.sites == {"0.cross": 3, "1.cross": 3, "2.cross": 3}
    source, mask = sentences()
    encoded = model.encode(source, mask, weights=True)
    assert list(encoded.weights) == ["0.self", "1.self", "2.self"]
    assert encoded.weights["0.self"].shape == (2, 3, 5, 5)
    assert model.encode(source, mask).weights == {}
    assert model.decode(encoded, source).weights == {}


def test_ties_share_vectors():
    counts = {
        tie: sum(
            parameter.numel() for parameter in transformer(sizes=(13, 13), tie=tie).parameters()
        )
        for tie in ("none", "target", "all")
    }
    assert counts["none"] - counts["target"] == counts["target"] - counts["all"] == 13 * 12


def test_training_changes_every_parameter_and_drops():
    model = transformer().train()
    source, mask = sentences()
    target = torch.tensor([[BEGIN, 5, 6], [BEGIN, 7, 8]])
    chosen = torch.ones_like(target, dtype=torch.bool)
    first, second = (model(source, mask, target, chosen) for _ in range(2))
    assert not torch.allclose(first, second)
    first.logsumexp(1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("width", [6, 7])
def test_positions_are_the_papers_in_halves(width):
    table = sinusoids(3, 4, width)
    half = (width + 1) // 2
    for place in range(4):
        for feature in range(width):
            rate = 10000 ** (-2 * (feature % half) / width)
            wave = math.sin if feature < half else math.cos
            assert float(table[place, feature]) == pytest.approx(wave((place + 3) * rate))


def test_positions_beyond_the_table():
    positions = Positions(6, ready=4)
    features = torch.randn(2, 5, 6)
    expected = features * 6**0.5 + sinusoids(2, 5, 6).float()
    assert torch.allclose(positions(features, start=2), expected, atol=1e-6)
    assert list(positions.state_dict()) == []


@pytest.mark.parametrize("first", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("start", [0, 3, 9])  # within the table, across its end, beyond
def test_positions_are_rounded_once(first, start):
    positions = Positions(6, ready=5).to(first)
    features = torch.zeros(1, 4, 6)
    for dtype in (first, torch.float64, torch.float32, torch.float64):
        found = positions.to(dtype)(features.to(dtype), start=start)
        assert torch.equal(found[0], sinusoids(start, 4, 6).to(dtype))


def test_in_double_precision_a_long_target_is_its_steps_and_long_padding_nothing():
    model = transformer(torch.float64)
    source, mask = sentences()
    target = torch.randint(3, 13, (2, 131))  # more than the positions at hand
    with torch.no_grad():
        encoded = model.encode(source, mask)
        whole = model.logits(model.decode(encoded, target).features)
        state = model.start(encoded)
        for place in range(131):
            stepped = model.step(encoded, state, target[:, place])
            state = stepped.state
            assert torch.allclose(stepped.logits, whole[:, place], rtol=0, atol=1e-12)
        longer = model.encode(F.pad(source, (0, 130)), F.pad(mask, (0, 130)))
        again = model.logits(model.decode(longer, target).features)
    assert torch.allclose(again, whole, rtol=0, atol=1e-12)


def test_positions_made_while_nothing_is_learned_serve_learning_too():
    model = transformer().double()
    source, mask = sentences()
    with torch.inference_mode():
        model.encode(source, mask)
    model(source, mask, source, mask).sum().backward()
    assert model.embeddings.target.weight.grad.isfinite().all()


def test_no_sentences():
    model = transformer()
    encoded = model.encode(torch.zeros(0, 4, dtype=torch.long), torch.zeros(0, 4).bool())
    tokens = torch.zeros(0, dtype=torch.long)
    assert model.step(encoded, model.start(encoded, 2), tokens).logits.shape == (0, 13)
    assert model.decode(encoded, tokens[:, None].expand(0, 3)).features.shape == (0, 3, 12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"norm": "both"}, "model.norm is 'both', expected 'pre' or 'post'"),
        ({"tie": "all"}, "11 and 13"),
        ({"heads": 5}, "width 12 is not a multiple of n_heads 5"),
    ],
)
def test_wrong_configurations(options, text, without_shape_checks):
    with pytest.raises(RegardError, match=text):
        transformer(**options)


def test_scheduled_sampling_is_refused():
    model = transformer()
    source, mask = sentences()
    with pytest.raises(RegardError, match=r"Transformer: forcing is 0\.5, expected 1"):
        model.decode(model.encode(source, mask), source, forcing=0.5)


def test_a_capture_of_a_search_names_every_attention():
    model, (source, mask) = transformer(), sentences()
    with regard.capture(model) as trace:
        beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    names = {record.site.name.split("#")[0] for record in trace}
    assert names == {
        *(f"encoder.blocks.{layer}.self_attention.part" for layer in range(3)),
        *(f"decoder.blocks.{layer}.self_attention.part" for layer in range(3)),
        *(f"decoder.blocks.{layer}.cross_attention.part" for layer in range(3)),
    }


def test_a_stand_in_for_an_attention_is_heard_in_a_search():
    model, (source, mask) = transformer(), sentences()
    before = beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    part = model.decoder.layers[1].cross_attention.part
    own = part.forward

    def louder(*inputs, **options):
        attended = own(*inputs, **options)
        return replace(attended, output=9.0 * attended.output)

    part.forward = louder
    after = beam_search(model, source, mask, SearchOptions(beam=1, longest=3), weights=False)
    assert any(
        plain[0].log_probability != changed[0].log_probability
        for plain, changed in zip(before, after)
    )
