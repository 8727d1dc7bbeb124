"""Edits in `generate()`: cached, against an eager float64 twin without a cache."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from dense_edit import Spec, dense_edit
from families import FAMILIES, words
from tiny import randomise

import regard

MODELS = {
    "llama": hf.LlamaForCausalLM,
    "gpt2": hf.GPT2LMHeadModel,
    "mistral": hf.MistralForCausalLM,  # keys older than the window of 5 are forgotten
    "bart": hf.BartForConditionalGeneration,
    "t5": hf.T5ForConditionalGeneration,
}
LATER = [*range(8, 40)]
CHANGES = {
    "self": [Spec("forbid", queries=LATER, keys=[6, 9]), Spec("bias", 1.5, heads=[1], keys=[10])],
    "weights": [Spec("replace", "previous", heads=[2]), Spec("multiply", 0.5, queries=[10, 11])],
    "decoder": [
        Spec("forbid", where="decoder*", queries=[2, 3], keys=[1, 4]),
        Spec("replace", "self", where="*decoder*attn", queries=[4], heads=[0]),
    ],
    "t5 decoder": [Spec("forbid", where="decoder*", queries=[2, 3], keys=[1, 4])],
}
WAYS = [
    ("llama", "sdpa", "self", {}),
    ("llama", "sdpa", "weights", {"cache_implementation": "static"}),
    ("llama", "eager", "self", {"cache_implementation": "static"}),
    ("llama", "sdpa", "self", {"num_beams": 3}),
    ("gpt2", "eager", "weights", {"num_beams": 2}),
    ("gpt2", "sdpa", "self", {}),
    ("mistral", "sdpa", "self", {}),
    ("mistral", "eager", "weights", {"cache_implementation": "static"}),
    ("bart", "sdpa", "decoder", {}),
    ("bart", "eager", "decoder", {"num_beams": 3}),
    ("t5", "sdpa", "t5 decoder", {"cache_implementation": "static"}),
    ("t5", "eager", "t5 decoder", {}),
]
MORE = {"max_new_tokens": 7, "do_sample": False, "return_dict_in_generate": True}


def build(name: str, implementation: str):
    config = FAMILIES[name].config()
    config.pad_token_id, config.eos_token_id, config.decoder_start_token_id = 0, None, 3
    torch.manual_seed(0)
    model = MODELS[name]._from_config(config, attn_implementation=implementation)
    randomise(model)
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    return model.eval()


@pytest.mark.parametrize(("name", "implementation", "changes", "way"), WAYS)
def test_cached_as_without_a_cache(name, implementation, changes, way) -> None:
    prefix = "model." if name in ("llama", "mistral", "bart") else ""
    specs = [spec._replace(where=_placed(spec.where, prefix)) for spec in CHANGES[changes]]
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :3] = 0  # padded on the left
    inputs = {"input_ids": words(2, 9), "attention_mask": mask}
    more = MORE | {"output_logits": True}
    twin, model = build(name, "eager").double(), build(name, implementation)
    beams = {key: value for key, value in way.items() if key == "num_beams"}
    with torch.no_grad():
        plain = model.generate(**inputs, **more, **way)
        with dense_edit(twin, specs):
            truth = twin.generate(**inputs, **more, **beams, use_cache=False)
        with regard.edit(model, *[spec.change() for spec in specs]):
            output = model.generate(**inputs, **more, **way)
            if not way:  # once for each model
                _same(model.generate(**inputs, **more), output)
        if not way:
            _same(model.generate(**inputs, **more), plain)
    assert torch.equal(output.sequences, truth.sequences)
    for ours, theirs in zip(output.logits, truth.logits):
        assert ((ours - theirs).abs() / theirs.abs().clamp_min(1)).max() < 1e-5
    moved = [(a - b).abs().max() for a, b in zip(output.logits, plain.logits)]
    assert max(moved) > 1e-2


def _same(output, other) -> None:
    assert all(torch.equal(a, b) for a, b in zip(output.logits, other.logits))


def _placed(where: str, prefix: str) -> str:
    return where if where.startswith("*") else prefix + where
