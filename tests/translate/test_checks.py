"""Each check passes on sound models, and fails on one that is broken in just that way."""

import pytest
import torch

from regard.errors import RegardError
from regard.translate.checks import check_model
from regard.translate.models.build import ModelConfig, build, names
from regard.translate.models.contract import Decoded, TranslationModel

SIZES = {"embedding": 12, "hidden": 16, "heads": 2, "feed_forward": 24, "layers": 2}
NO_ATTENTION = ("none", "encoder-dot", "encoder-qkv")


def made(name):
    """A model with all parameters stirred: some attentions begin with weights that are constant."""
    torch.manual_seed(0)
    model = build(ModelConfig(name, **SIZES), 30, 40)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def verdicts(model):
    return {verdict.name: verdict for verdict in check_model(model, 30)}


def words(model):
    return [verdict.word for verdict in verdicts(model).values()]


@pytest.mark.parametrize("name", names())
def test_the_verdict_on_every_model(name):
    third = "failed" if name == "tutorial" else "passed"
    if name in NO_ATTENTION:
        third = "not applicable"
    assert words(made(name)) == ["passed", "passed", third]


class Wrapped(TranslationModel):
    """A model that does one thing wrong; all else is done by the model inside."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.sites = inside.sites
        self.kind = inside.kind

    def encode(self, source, mask, *, weights=False):
        return self.inside.encode(source, mask, weights=weights)

    def start(self, encoded, beams=1):
        return self.inside.start(encoded, beams)

    def step(self, encoded, state, tokens, *, weights=False):
        return self.inside.step(encoded, state, tokens, weights=weights)

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        return self.inside.decode(encoded, target, weights=weights)

    def logits(self, features):
        return self.inside.logits(features)


class Peeking(Wrapped):
    """Its decoder is given the next token a little."""

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        right = super().decode(encoded, target, weights=weights)
        ahead = right.features.roll(-1, 1)
        return Decoded(right.features + 0.01 * ahead, right.weights)


class Deaf(Wrapped):
    """Its decoder does not hear what it is given."""

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        return super().decode(encoded, torch.ones_like(target), weights=weights)


class ReadingPadding(Wrapped):
    """Its encoder takes padding for words; attention goes there too."""

    def encode(self, source, mask, *, weights=False):
        return super().encode(source, torch.ones_like(mask), weights=weights)


class Sociable(Wrapped):
    """Its features are shifted by their mean over the batch; its attention is sound."""

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        right = super().decode(encoded, target, weights=weights)
        return Decoded(right.features - right.features.mean(0), right.weights)


class Blind(Wrapped):
    """It reads the same source whatever it is given."""

    def encode(self, source, mask, *, weights=False):
        return super().encode(torch.full_like(source, 5), mask, weights=weights)


def test_a_decoder_that_peeks_is_found():
    found = verdicts(Peeking(made("bahdanau")))
    assert found["causal"].passed is False and found["padding"].passed
    assert "the decoder sees the future" in found["causal"].why


def test_a_transformer_without_its_causal_mask_is_found():
    model = made("transformer")
    for block in model.decoder.layers:
        block.self_attention.register_forward_pre_hook(
            lambda part, given, named: (given, {**named, "causal": False}), with_kwargs=True
        )
    found = verdicts(model)
    assert found["causal"].passed is False and found["padding"].passed


def test_a_decoder_that_does_not_listen_is_not_called_causal():
    found = verdicts(Deaf(made("luong-general")))["causal"]
    assert found.passed is None and "does not look at the target" in found.why


@pytest.mark.parametrize("name", ["bahdanau", "transformer", "none"])
def test_a_model_that_reads_padding_is_found(name):
    found = verdicts(ReadingPadding(made(name)))
    assert found["padding"].passed is False and found["causal"].passed
    assert ("a place of padding got attention" in found["padding"].why) == (name != "none")


def test_a_model_that_looks_at_its_neighbours_in_the_batch_is_found():
    found = verdicts(Sociable(made("dot")))["padding"]
    assert found.passed is False and "depends on the company it is in" in found.why


def test_the_tutorial_fails_for_the_reason_said():
    found = verdicts(made("tutorial"))["uses the encoder"]
    assert "they come from the decoder alone and never see the source words" in found.why
    assert "the translation depends on the source" in found.why


def test_a_model_that_never_sees_the_source_is_found():
    found = verdicts(Blind(made("qkv")))["uses the encoder"]
    assert found.passed is False
    assert "the translation does not depend on the source at all" in found.why
    found = verdicts(Blind(made("none")))["uses the encoder"]
    assert found.passed is None and "does not depend on the source at all" in found.why


def test_constant_weights_prove_nothing():
    model = build(ModelConfig("bahdanau", **SIZES), 30, 40)
    found = verdicts(model)["uses the encoder"]
    assert found.passed is None and "nothing has been learned there yet" in found.why


def test_nothing_is_left_behind():
    model = made("transformer")
    model.train()
    model.encoder.eval()
    before, modes = torch.get_rng_state(), [module.training for module in model.modules()]
    first = check_model(model, 30)
    assert torch.equal(before, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert check_model(model, 30) == first
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    assert words(made("transformer").to(dtype))[::2] == ["passed", "passed"]
    assert words(made("tutorial").to(dtype))[2] == "failed"


def test_models_that_are_too_small_are_refused():
    with pytest.raises(RegardError, match="the source vocabulary has 5 tokens, expected at least"):
        check_model(made("dot"), 5)
    with pytest.raises(RegardError, match="reads at most 6 tokens, but the checks need 11"):
        check_model(build(ModelConfig("tutorial", embedding=4, hidden=4, longest=5), 30, 40), 30)


def test_the_model_under_test_is_what_was_wrapped():
    assert words(Wrapped(made("bahdanau"))) == ["passed"] * 3
