"""What stands around an attention is found in transformers of many families, and in trained ones.

The vectors are checked by what the block really gave.
"""

import copy

import pytest
import torch
import transformers as hf
from residual_models import seen_at, stirred, total, watched
from torch import nn

from regard.aggregate.layers.contributions import contributions
from regard.anatomy.residual_stream import surroundings_of
from regard.cli import packaged

IDS = torch.tensor([[5, 17, 33, 8, 21, 40], [12, 44, 9, 30, 7, 19]])
TEXT = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
}
PAIR = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)}
WORDS = {"input_ids": IDS}
BOTH = {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}
# Family: configuration, inputs, and where what its first attention block gives can be seen: the
# output of a module (post-norm) or its input (pre-norm).
FAMILIES = {
    "Bert": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "Roberta": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "Electra": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "DebertaV2": (TEXT, WORDS, "encoder.layer.0.attention.output.LayerNorm", "output"),
    "MPNet": (TEXT, WORDS, "encoder.layer.0.attention.LayerNorm", "output"),
    "DistilBert": (
        {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32},
        WORDS,
        "transformer.layer.0.sa_layer_norm",
        "output",
    ),
    "ViT": (IMAGE, PIXELS, "layers.0.layernorm_after", "input"),
    "CLIPVision": (IMAGE, PIXELS, "encoder.layers.0.layer_norm2", "input"),
    "CLIPText": (TEXT, WORDS, "encoder.layers.0.layer_norm2", "input"),
    "GPT2": (
        {**TEXT, "n_embd": 16, "n_layer": 2, "n_head": 4},
        WORDS,
        "h.0.ln_2",
        "input",
    ),
    "Llama": (GROUPED, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Mistral": (GROUPED, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Qwen3": ({**GROUPED, "head_dim": 8}, WORDS, "layers.0.post_attention_layernorm", "input"),
    "Gemma2": ({**GROUPED, "head_dim": 8}, WORDS, "layers.0.pre_feedforward_layernorm", "input"),
    "Olmo2": (GROUPED, WORDS, "layers.0.mlp", "input"),
    "Bloom": (
        {**TEXT, "n_layer": 2, "n_head": 4},
        WORDS,
        "h.0.post_attention_layernorm",
        "input",
    ),
    "OPT": (
        {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16},
        WORDS,
        "decoder.layers.0.final_layer_norm",
        "input",
    ),
    "T5": (
        {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4},
        BOTH,
        "encoder.block.0.layer.1",
        "input",
    ),
    "Bart": (PAIR, BOTH, "encoder.layers.0.self_attn_layer_norm", "output"),
    "Marian": (PAIR, BOTH, "encoder.layers.0.self_attn_layer_norm", "output"),
    "Dinov2": (
        {**IMAGE, "layerscale_value": 0.5},
        PIXELS,
        "encoder.layer.0.norm2",
        "input",
    ),
}


def family(name):
    settings, inputs, place, side = FAMILIES[name]
    config = getattr(hf, f"{name}Config")(**settings)
    model = stirred(getattr(hf, f"{name}Model")(config))
    inputs = {
        key: given.double() if given.is_floating_point() else given for key, given in inputs.items()
    }
    return model, inputs, place, side


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # DeBERTa's own
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_sum_to_the_real_output_of_the_block(name):
    model, inputs, place, side = family(name)
    truth = seen_at(model, place, side, **inputs)[0]
    trace, residual = watched(model, **inputs)
    near = residual.of(trace[0])
    found = contributions(trace[0], near)
    assert (near.norm is not None) == (side == "output")
    assert (near.branch is not None) == (name in ("Gemma2", "Olmo2", "Dinov2"))
    # Norms of these three go through float32 whatever comes in.
    slack = 1e-6 if name in ("Gemma2", "Olmo2", "T5") else 1e-10
    truth = truth.reshape(found.output.shape)
    torch.testing.assert_close(total(found), truth, atol=slack, rtol=0)
    torch.testing.assert_close(found.output, truth, atol=slack, rtol=0)


@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama", "T5", "Bart"])
def test_every_layer_is_found(name):
    model, inputs, _, _ = family(name)
    trace, residual = watched(model, **inputs)
    for record in trace:
        found = contributions(record, residual.of(record), "attention")
        mixed = record.mixed().transpose(1, 2).flatten(2)
        near = surroundings_of(model, [record], stream=False)[0]
        truth = nn.functional.linear(mixed, near.output_weight, near.output_bias)
        torch.testing.assert_close(total(found), truth, atol=1e-10, rtol=0)


def test_left_padding_of_a_causal_model():
    """Queries of padding attend to nothing; a model gives for them what it likes."""
    model, _, place, side = family("Llama")
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    inputs = {"input_ids": IDS, "attention_mask": mask}
    truth = seen_at(model, place, side, **inputs)[0]
    trace, residual = watched(model, **inputs)
    found = total(contributions(trace[0], residual.of(trace[0])))
    torch.testing.assert_close(found[mask.bool()], truth[mask.bool()], atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "slack"), [(torch.float64, 1e-10), (torch.float32, 1e-6), (torch.bfloat16, 0.05)]
)
def test_the_real_minilm(dtype, slack):
    """Vectors and bias sum to what the attention's projection gives, and its layer norm after."""
    loaded = packaged.minilm()
    model = loaded.model if dtype == torch.float32 else copy.deepcopy(loaded.model).to(dtype)
    given = loaded.tokenizer(
        ["The animal didn't cross the street because it was too tired.", "see that girl run"],
        return_tensors="pt",
        padding=True,
    )
    trace, residual = watched(model, **given)
    for layer in (0, 5):
        place = f"encoder.layer.{layer}.attention.output"
        record = trace[f"encoder.layer.{layer}.attention.self"]
        near = residual.of(record)
        assert near.norm is model.get_submodule(f"{place}.LayerNorm")
        for include, part in (("attention", "dense"), ("norm", "LayerNorm")):
            truth = seen_at(model, f"{place}.{part}", "output", **given)[0].to(record.dtype)
            found = contributions(record, near, include)
            torch.testing.assert_close(total(found), truth, atol=slack, rtol=slack)


def test_the_real_albert_calls_one_layer_twelve_times():
    loaded = packaged.rxnmapper()
    inputs = loaded.encode("CCO.CC(=O)O>>CCOC(C)=O").inputs
    truth = seen_at(
        loaded.model,
        "encoder.albert_layer_groups.0.albert_layers.0.attention.LayerNorm",
        "output",
        **inputs,
    )
    trace, residual = watched(loaded.model, **inputs)
    assert len(trace) == len(truth) == 12
    for record, given in zip(trace, truth, strict=True):
        found = contributions(record, residual.of(record))
        torch.testing.assert_close(total(found), given, atol=1e-5, rtol=0)
