"""The registry, its configuration, tied embeddings, and what each says when it does not fit."""

from __future__ import annotations

import pytest
import torch

from regard.errors import RegardError, ShapeError
from regard.translate.models.build import BUILDERS, PRESETS, ModelConfig, build, names
from regard.translate.models.embeddings import embeddings

ASKED = (
    "none dot qkv encoder-dot encoder-qkv tutorial bahdanau luong-dot luong-general luong-concat "
    "local-m local-p transformer"
)


def small(name: str = "bahdanau", **more: object) -> ModelConfig:
    return ModelConfig(name, embedding=6, hidden=8, **more)  # type: ignore[arg-type]


def test_every_name_is_there():
    assert set(names()) == set(ASKED.split()) == set(BUILDERS)


def test_the_reference_shape():
    config = PRESETS["reference"]
    assert (config.embedding, config.hidden, config.longest) == (300, 500, 100)


def test_only_models_that_look_have_a_site():
    with_none = {name for name in names() if not build(small(name, heads=2), 9, 9).sites}
    assert with_none == {"none", "encoder-dot", "encoder-qkv"}


def test_attention_inside_the_encoder_has_a_name():
    source = torch.tensor([[4, 5, 2]])
    for name in ("encoder-dot", "encoder-qkv"):
        encoded = build(small(name), 9, 9).encode(source, source > 0, weights=True)
        assert encoded.weights["encoder"].shape == (1, 1, 3, 3)


@pytest.mark.parametrize("name", ["bahdanau", "luong-general", "none"])
def test_tied_parameters_are_held_once(name):
    tied = build(small(name, tie="target"), 9, 11)
    assert tied.embeddings.output is None
    assert tied.logits(torch.randn(2, 6)).shape == (2, 11)
    free = build(small(name, tie="all"), 11, 11)
    assert free.embeddings.source is free.embeddings.target
    keys = [key for key in free.state_dict() if key.startswith("embeddings")]
    assert keys == ["embeddings.bias", "embeddings.target.weight"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden": 0}, "model.hidden is 0, expected at least 1"),
        ({"dropout": 1.0}, "model.dropout is 1.0, expected from 0 to below 1"),
        ({"cell": "rnn"}, "model.cell is 'rnn', expected 'gru' or 'lstm'"),
        ({"tie": "some"}, "model.tie is 'some', expected 'none' or 'target' or 'all'"),
        ({"norm": "mid"}, "model.norm is 'mid', expected 'pre' or 'post'"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_a_setting_that_does_not_fit_is_named(change, text):
    with pytest.raises(RegardError, match=text):
        ModelConfig(**change)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(RegardError, match=r"model\.name is 'badhanau', expected one of none, "):
        build(small("badhanau"), 9, 9)


@pytest.mark.parametrize("name", ["none", "encoder-dot", "encoder-qkv", "tutorial", "bahdanau"])
def test_input_feeding_needs_an_attentional_state(name):
    with pytest.raises(RegardError, match=f"input_feeding is true with model.name '{name}'"):
        build(small(name, input_feeding=True), 9, 9)


def test_two_directions_have_none_to_reverse():
    with pytest.raises(RegardError, match="has no direction to reverse"):
        build(small(reverse_source=True), 9, 9)


def test_one_embedding_for_both_wants_one_vocabulary():
    with pytest.raises(RegardError, match="they have 9 and 11 tokens"):
        build(small(tie="all"), 9, 11)
    with pytest.raises(RegardError, match="takes 8 features, expected 6"):
        embeddings(9, 9, 6, features=8, tie="target")
    with pytest.raises(RegardError, match="tie='some', expected 'none', 'target' or 'all'"):
        embeddings(9, 9, 6, features=6, tie="some")


def test_nothing_to_read_or_say_is_refused():
    model = build(small(), 9, 9)
    empty = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ShapeError, match="source has size 0, expected at least 1"):
        model.encode(empty, empty > 0)
    source = torch.tensor([[4, 2]])
    with pytest.raises(ShapeError, match="target has size 0, expected at least 1"):
        model.decode(model.encode(source, source > 0), empty[:1])


def test_additive_weights_are_equal_at_first():
    model = build(small(), 9, 9).eval()
    source = torch.tensor([[4, 5, 6, 2], [4, 2, 0, 0]])
    decoded = model.decode(model.encode(source, source > 0), torch.tensor([[1], [1]]), weights=True)
    expected = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    assert torch.equal(decoded.weights["cross"][:, 0, 0], expected)
