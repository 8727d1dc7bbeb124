"""Gated delta rules of transformers' hybrid models: implied weights, against identity as values."""

from __future__ import annotations

import gc
import sys

import pytest
import torch
from transformers import (
    OlmoHybridConfig,
    OlmoHybridForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

import regard
from regard import CaptureWarning
from regard.recipe import Delta

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
SITE = "model.layers.0.linear_attn"
CHUNK, RECURRENT = "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"


def _qwen3_next(**changes):
    torch.manual_seed(0)
    sizes = SIZES | {"head_dim": 16, "num_experts": 0} | changes
    return Qwen3NextForCausalLM(Qwen3NextConfig(**sizes)).eval()


def _qwen3_5():
    torch.manual_seed(0)
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**SIZES, head_dim=16)).eval()


def _olmo_hybrid():
    torch.manual_seed(0)
    sizes = SIZES | {"linear_num_key_heads": 4}
    return OlmoHybridForCausalLM(OlmoHybridConfig(**sizes)).eval()


def _tokens(batch=2, length=70):
    return torch.randint(2, 40, (batch, length), generator=torch.Generator().manual_seed(1))


def _called(monkeypatch, model, *inputs, **options):
    """The arguments of each call of the rule in a pass, in order, with the rule's own function."""
    module = sys.modules[type(model).__module__]
    calls = []
    for name in (CHUNK, RECURRENT):
        rule = getattr(module, name)

        def spy(*args, _rule=rule, **kwargs):
            calls.append((_rule, args, kwargs))
            return _rule(*args, **kwargs)

        monkeypatch.setattr(module, name, spy)
    with torch.no_grad():
        model(*inputs, **options)
    monkeypatch.undo()
    return calls


def _implied(call):
    """(batch, head, query, key): what the function gives for the identity as values."""
    rule, (query, key, value), options = call
    batch, length, heads, _ = value.shape
    identity = torch.eye(length)[None, :, None].expand(batch, length, heads, length)
    weights, _ = rule(query.float(), key, identity, **options)  # given back as the query is
    return weights.permute(0, 2, 1, 3)


@pytest.mark.parametrize("build", [_qwen3_next, _qwen3_5, _olmo_hybrid])
def test_weights_are_those_of_the_models_own_function(monkeypatch, build):
    model, tokens = build(), _tokens()
    (call,) = _called(monkeypatch, model, tokens)
    with torch.no_grad():
        plain = model(tokens).logits
        with regard.capture(model, values=True, outputs=True) as trace:
            logits = model(tokens).logits
    assert torch.equal(logits, plain) and not trace.notes
    record = trace[0]
    assert "linear" in record.name and record.kind == "signed" and record.site.attends == "self"
    assert isinstance(record.recipe, Delta) and record.shape == (2, 4, 70, 70)
    torch.testing.assert_close(record.weights(), _implied(call), rtol=1e-4, atol=1e-6)
    assert not record.weights().triu(1).any()
    torch.testing.assert_close(record.recipe.mixed(), record.output, rtol=1e-4, atol=1e-6)
    assert [other.kind for other in trace] == ["signed", "distribution"]


@pytest.mark.parametrize("guard", [torch.inference_mode, torch.enable_grad])
def test_weights_in_bfloat16_and_in_other_modes(monkeypatch, guard):
    model, tokens = _qwen3_next().bfloat16(), _tokens(1, 9)
    (call,) = _called(monkeypatch, model, tokens)
    with guard():
        plain = model(tokens).logits
        trace = regard.trace(model, tokens)
        assert torch.equal(model(tokens).logits, plain)
    torch.testing.assert_close(trace[SITE].weights(), _implied(call), rtol=1e-4, atol=1e-6)


def test_steps_of_generate_join_their_keys():
    model, prompt = _qwen3_next(), _tokens(2, 5)
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False)
    with regard.capture(model) as trace:
        tokens = model.generate(prompt, max_new_tokens=6, do_sample=False)
    assert torch.equal(tokens, plain) and not trace.notes
    records = trace[SITE]
    shapes = [tuple(record.shape)[2:] for record in records]
    assert shapes == [(5, 5), (1, 6), (1, 7), (1, 8), (1, 9), (1, 10)]
    whole = regard.trace(model, tokens[:, :-1])[SITE].weights()
    rows = [
        torch.nn.functional.pad(record.weights(), (0, 10 - record.shape.keys)) for record in records
    ]
    torch.testing.assert_close(torch.cat(rows, 2), whole, rtol=1e-4, atol=1e-6)
    stitched = regard.stitch(trace, tokens)[SITE]
    torch.testing.assert_close(stitched.weights()[..., :10, :10], whole, rtol=1e-4, atol=1e-6)


def test_beams_find_the_keys_of_their_own_past():
    model, prompt = _qwen3_next(), _tokens(2, 5)
    with regard.capture(model) as trace:
        model.generate(prompt, max_new_tokens=5, num_beams=3, do_sample=False)
    last = [record for record in trace if record.name.startswith(SITE)][-1]
    assert last.shape == (6, 4, 1, 9) and last.parts.reordered and not trace.notes
    recipe = last.recipe
    longer = regard.recipe.Delta(  # every position reads: its last row is the step's
        recipe.query.expand(-1, -1, 9, -1),
        recipe.key,
        recipe.strength,
        log_decay=recipe.log_decay,
        mask=recipe.mask,
    )
    torch.testing.assert_close(longer.weights()[:, :, -1:], last.weights())


def test_a_state_that_nobody_saw_made_is_said_and_is_the_memory():
    model, tokens = _qwen3_next(), _tokens(2, 7)
    with torch.no_grad():
        cache = model(tokens[:, :6], use_cache=True).past_key_values
        with (
            pytest.warns(CaptureWarning, match="keys of calls that were not captured"),
            regard.capture(model, values=True, outputs=True) as trace,
        ):
            model(tokens[:, 6:], past_key_values=cache)
    record = trace[SITE]
    assert record.shape == (2, 4, 1, 1)
    assert [note.where for note in trace.notes] == [SITE]
    torch.testing.assert_close(record.recipe.mixed(), record.output, rtol=1e-4, atol=1e-6)
    whole = regard.trace(model, tokens)[SITE].weights()
    torch.testing.assert_close(record.weights(), whole[..., 6:, 6:], rtol=1e-4, atol=1e-6)


def test_gradients_by_the_weights_and_attached_weights():
    model, tokens = _qwen3_next(), _tokens(1, 6)
    with regard.capture(model, grad=True) as trace:
        model(tokens).logits.square().sum().backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    gradient = trace[SITE].gradient()
    assert gradient.shape == (1, 4, 6, 6) and gradient.any()
    model.zero_grad()
    model(tokens).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, expected[name]), name

    with regard.capture(model, attached=True, values=True) as trace:
        model(tokens)
    record = trace[SITE]
    (by_key,) = torch.autograd.grad(
        record.weights().square().sum(), model.model.embed_tokens.weight
    )
    assert by_key.isfinite().all() and by_key.any()


def test_other_ways_to_keep(tmp_path):
    model, prompt = _qwen3_next(), _tokens(2, 5)
    kept = {}
    for keep in ("recipe", "weights", tmp_path / "steps"):
        with torch.no_grad(), regard.capture(model, keep=keep) as trace:
            model.generate(prompt, max_new_tokens=3, do_sample=False)
        kept[keep] = [record.weights() for record in trace[SITE]]
    for weights in zip(*kept.values()):
        torch.testing.assert_close(weights[1], weights[0])
        torch.testing.assert_close(weights[2], weights[0])
    with torch.no_grad():
        regard.trace(model, prompt).save(tmp_path / "trace.safetensors")
    loaded = regard.load_trace(tmp_path / "trace.safetensors")[SITE]
    torch.testing.assert_close(loaded.weights(), kept["recipe"][0])


def test_a_call_that_fails_leaves_nothing_and_the_next_is_read(monkeypatch):
    model, tokens = _qwen3_next(), _tokens(1, 6)
    expected = regard.trace(model, tokens)[SITE].weights()
    module = sys.modules[type(model).__module__]
    norm = module.l2norm
    with regard.capture(model) as trace:
        monkeypatch.setattr(module, "l2norm", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(tokens)
        monkeypatch.setattr(module, "l2norm", norm)
        model(tokens)
    torch.testing.assert_close(trace[SITE].weights(), expected)
    gc.collect()


def test_a_filter_and_a_dropped_record():
    model, prompt = _qwen3_next(), _tokens(1, 5)
    with torch.no_grad(), regard.capture(model, where="*self_attn") as trace:
        model(prompt)
    assert [record.name for record in trace] == ["model.layers.1.self_attn"]
    with (
        pytest.warns(CaptureWarning, match="would exceed max_bytes=0"),
        regard.capture(model, max_bytes=0) as trace,
    ):
        model.generate(prompt, max_new_tokens=3, do_sample=False)
    assert all(record.held == "dropped" for record in trace)
