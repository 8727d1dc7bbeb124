"""Each check passes on sound models, and fails on one that is broken in just that way."""

from dataclasses import replace

import pytest
import torch

from regard.errors import RegardError
from regard.translate.checks import check_model
from regard.translate.models.build import ModelConfig, build_model, names
from regard.translate.models.contract import DecoderOutput, TranslationModel
from regard.translate.tokens import BEGIN

SIZES = {"embedding": 16, "hidden": 16, "layers": 2}
OWN = {"transformer": {"heads": 2, "feed_forward": 24}}
NO_ATTENTION = ("none", "encoder-dot", "encoder-qkv")


def made(name, **settings):
    """A model with all parameters stirred: some attentions begin with weights that are constant."""
    torch.manual_seed(0)
    model = build_model(ModelConfig(name, **SIZES, **OWN.get(name, {}), **settings), 30, 40)
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
        return DecoderOutput(right.features + 0.01 * ahead, right.weights)


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
        return DecoderOutput(right.features - right.features.mean(0), right.weights)


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
    assert ("padding got attention" in found["padding"].why) == (name != "none")


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
    assert found.passed is False and "does not depend on the source at all" in found.why


def test_constant_weights_prove_nothing():
    model = build_model(ModelConfig("bahdanau", **SIZES), 30, 40)
    found = verdicts(model)["uses the encoder"]
    assert found.passed is None and "nothing has been learned there yet" in found.why
    assert "what is looked at moves the logits" in found.why


class EndFirst(Wrapped):
    """Its first state looks at the end of any source, all later ones as they please."""

    def step(self, encoded, state, tokens, *, weights=False):
        right = super().step(encoded, state, tokens, weights=weights)
        first = (tokens == BEGIN)[:, None, None]
        end = torch.zeros(encoded.mask.shape[1])
        end[-1] = 1
        sites = {site: torch.where(first, end, made) for site, made in right.weights.items()}
        return replace(right, weights=sites)


def test_one_state_that_looks_at_the_end_of_any_source_is_no_proof():
    """What a trained model does often: the verdict has to wait for other words."""
    found = verdicts(EndFirst(made("luong-general")))["uses the encoder"]
    assert found.passed and "in 64 states, the weights moved" in found.why
    found = verdicts(EndFirst(made("tutorial")))["uses the encoder"]
    assert found.passed is False and "never see the source words" in found.why


def test_a_decoder_that_throws_away_what_it_looks_at_is_found():
    model = made("luong-general")
    with torch.no_grad():
        model.decoder.readout.linear.weight[:, : model.decoder.look.width] = 0
    found = verdicts(model)["uses the encoder"]
    assert found.passed is False and "in 64 states, no logit moved" in found.why
    assert "the decoder does not use what it looks at" in found.why
    assert "the translation depends on the source" in found.why  # by the first state


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["bahdanau", "transformer", "none"])
def test_parameters_that_are_not_finite_fail_everything(name, value):
    model = made(name)
    with torch.no_grad():
        model.embeddings.bias[3:5] = value
    found = check_model(model, 30)
    assert [verdict.passed for verdict in found] == [False] * 3
    for verdict in found:
        assert "2 of 40 values of the parameter embeddings.bias are NaN or inf" in verdict.why


class Overflowing(Wrapped):
    """Finite parameters, and logits that are not."""

    def logits(self, features):
        return super().logits(features) / 0


class OverflowingSteps(Wrapped):
    """Sound, but for the weights of single steps."""

    def step(self, encoded, state, tokens, *, weights=False):
        right = super().step(encoded, state, tokens, weights=weights)
        broken = {site: made / 0 for site, made in right.weights.items()}
        return replace(right, weights=broken)


class BreakingAtPadding(Wrapped):
    """Sound on sentences alone; a batch with padding is answered with NaN."""

    def decode(self, encoded, target, *, weights=False, forcing=1.0):
        right = super().decode(encoded, target, weights=weights)
        broken = torch.where(encoded.mask.all(1)[:, None, None], right.features, torch.nan)
        return DecoderOutput(broken, right.weights)


def test_answers_that_are_not_finite_fail():
    found = check_model(Overflowing(made("dot")), 30)
    assert [verdict.passed for verdict in found] == [False] * 3
    assert all("values of the model's logits are NaN or infinite" in one.why for one in found)
    found = check_model(OverflowingSteps(made("dot")), 30)
    assert [verdict.passed for verdict in found] == [True, True, False]
    assert "values of the attention weights of cross are NaN or infinite" in found[2].why
    found = check_model(BreakingAtPadding(made("dot")), 30)
    assert [verdict.passed for verdict in found] == [True, False, True]
    assert "values of the model's logits beside padding are NaN or infinite" in found[1].why


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
    model = made("dot")
    model.longest_source = 1
    with pytest.raises(RegardError, match="reads at most 1 tokens, expected at least 2: a word"):
        check_model(model, 30)


@pytest.mark.parametrize(
    "longest", [1, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5, 9))]
)
def test_models_for_short_sources_are_tried_with_short_ones(longest):
    model = made("tutorial", longest=longest)
    assert words(model) == ["passed", "passed", "failed"]
    broken = ReadingPadding(model)
    broken.longest_source = model.longest_source
    assert verdicts(broken)["padding"].passed is False
    model = made("bahdanau")
    model.longest_source = longest + 1
    assert words(model) == ["passed"] * 3


def test_the_model_under_test_is_what_was_wrapped():
    assert words(Wrapped(made("bahdanau"))) == ["passed"] * 3
