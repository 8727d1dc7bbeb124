"""`generate()` in all its ways on tiny models, stitched and compared with a teacher-forced pass."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from families import FAMILIES, words
from tiny import randomise

import regard

MODELS = {
    "llama": (hf.LlamaForCausalLM, "llama"),
    "gpt2": (hf.GPT2LMHeadModel, "gpt2"),
    "mistral": (hf.MistralForCausalLM, "mistral"),  # keys older than the window are forgotten
    "bart": (hf.BartForConditionalGeneration, "bart"),
    "t5": (hf.T5ForConditionalGeneration, "t5"),
}
WAYS = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 10},
    "sampled-twice": {"do_sample": True, "num_return_sequences": 2},
    "beam": {"num_beams": 3},
    "two-of-three-beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampled-beams": {"num_beams": 2, "do_sample": True},
}
STEPS = 6
MORE = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": STEPS}


def build(name: str, implementation: str | None = None):
    model_class, family = MODELS[name]
    config = FAMILIES[family].config()
    config.pad_token_id, config.eos_token_id, config.decoder_start_token_id = 0, None, 3
    options = {"attn_implementation": implementation} if implementation else {}
    torch.manual_seed(0)
    model = model_class._from_config(config, **options)
    randomise(model)
    model.generation_config.eos_token_id = None  # every sequence has its full length
    model.generation_config.forced_eos_token_id = None
    return model.eval()


def generated(model, given, how):
    with torch.no_grad():
        torch.manual_seed(0)
        plain = model.generate(**given, **how, **MORE)
        torch.manual_seed(0)
        with regard.capture(model) as trace:
            output = model.generate(**given, **how, **MORE)
    assert torch.equal(plain.sequences, output.sequences), "nothing changed"
    return trace, output


def forced(twin, given, sequences, row):
    """Eager weights, by kind, of one returned sequence fed at once."""
    example = row * len(given["input_ids"]) // len(sequences)
    fed = sequences[row : row + 1, :-1]
    with torch.no_grad():
        if twin.config.is_encoder_decoder:
            text = given["input_ids"][example : example + 1]
            told = twin(input_ids=text, decoder_input_ids=fed, output_attentions=True)
            return {"self": told.decoder_attentions, "cross": told.cross_attentions}
        return {"self": twin(fed, output_attentions=True).attentions}


@pytest.mark.parametrize("implementation", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_stitched_maps_are_the_teacher_forced_ones(name, way, implementation):
    model, twin = build(name, implementation), build(name, "eager")
    given = {"input_ids": words(batch=2, length=5)}
    trace, output = generated(model, given, WAYS[way])
    assert len(trace.steps) == STEPS
    stitched = regard.stitch(trace, output)
    for row in range(len(output.sequences)):
        for attends, want in forced(twin, given, output.sequences, row).items():
            mine = [
                record
                for record in stitched
                if record.attends == attends
                and not record.name.startswith(("encoder.", "model.enc"))
            ]
            assert len(mine) == len(want), stitched.names()
            for record, true in zip(mine, want):
                got = record.weights()[row : row + 1]
                torch.testing.assert_close(got, true, atol=1e-4, rtol=0, msg=record.name)


@pytest.mark.parametrize("cache", ["dynamic", "static", "none"])
def test_any_cache(cache):
    model, twin = build("llama"), build("llama", "eager")
    given = {"input_ids": words(batch=2, length=5)}
    how = {
        "dynamic": {},
        "static": {"cache_implementation": "static"},
        "none": {"use_cache": False},
    }
    trace, output = generated(model, given, {"do_sample": False, **how[cache]})
    if cache == "none":  # every step is a whole pass: the last one has it all
        mine = [record.weights() for record in trace.steps[-1]]
    else:
        mine = [record.weights() for record in regard.stitch(trace, output)]
    for got, *true in zip(
        mine, *(forced(twin, given, output.sequences, i)["self"] for i in (0, 1))
    ):
        length = true[0].shape[-1]
        assert (got[..., length:] == 0).all(), "places not yet written"
        got = got[..., :length]
        torch.testing.assert_close(got, torch.cat(true), atol=1e-4, rtol=0)


def test_left_padded_prompts():
    model, twin = build("llama"), build("llama", "eager")
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    given = {"input_ids": words(batch=2, length=5), "attention_mask": mask}
    trace, output = generated(model, given, {"do_sample": False})
    fed = output.sequences[:, :-1]
    longer = torch.nn.functional.pad(mask, (0, fed.shape[1] - 5), value=1)
    places = (longer.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        want = twin(fed, attention_mask=longer, position_ids=places, output_attentions=True)
    for record, true in zip(regard.stitch(trace, output), want.attentions, strict=True):
        got = record.weights()
        torch.testing.assert_close(got[0], true[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(got[1][:, 2:], true[1][:, 2:], atol=1e-4, rtol=0)
        assert (got[1, :, 2:, :2] == 0).all()


def test_memory_grows_with_the_length_not_its_square():
    model = build("llama")

    def held(steps: int) -> int:
        with torch.no_grad(), regard.capture(model) as trace:
            model.generate(words(batch=1, length=5), max_new_tokens=steps, do_sample=False)
        return trace.nbytes

    assert held(80) < 2.3 * held(40)


def test_without_beam_indices_the_error_says_what_to_ask_for():
    model = build("llama")
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(words(batch=1, length=5), num_beams=2, max_new_tokens=3)
    with pytest.raises(
        regard.RegardError, match="return_dict_in_generate=True, output_scores=True"
    ):
        regard.stitch(trace, output)


def test_a_model_copied_while_captured_is_an_ordinary_model():
    model = build("llama")
    with torch.no_grad():
        with regard.capture(model) as trace:
            want = model(words()).logits
            other = copy.deepcopy(model)
        assert torch.equal(other(words()).logits, want)
    assert len(trace) == 2
