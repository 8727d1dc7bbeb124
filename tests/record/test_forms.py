"""Weights in the forms that other tools take, from models of torch and of transformers."""

import pytest
import torch
from record_examples import Stack, record, words
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

import regard
from regard.errors import UnavailableError
from regard.record import Trace

FORMS = ("encoder_attentions", "decoder_attentions", "cross_attentions")


def bart(layers=2):
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=40,
            d_model=16,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=2,
            decoder_attention_heads=4,
            encoder_ffn_dim=16,
            decoder_ffn_dim=16,
            max_position_embeddings=32,
            forced_eos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def t5(layers=2):
    config = T5Config(
        vocab_size=40,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=layers,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    return T5ForConditionalGeneration(config).eval()


def gpt2():
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=4, eos_token_id=None)
    return GPT2LMHeadModel(config).eval()


def ids(*shape):
    return torch.randint(3, 40, shape, generator=torch.Generator().manual_seed(0))


def same(ours, theirs):
    assert type(ours) is type(theirs) is tuple and len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        if isinstance(other, tuple):
            same(one, other)
        else:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def eagerly(model, call):
    """What transformers itself gives, in its eager implementation."""
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return call()
    finally:
        model.set_attn_implementation("sdpa")


def test_one_stack():
    model = Stack(True, False, True)
    with regard.capture(model) as trace:
        model(words(2, 5, 8))
    assert len(trace.attentions) == 3
    for weights, found in zip(trace.attentions, trace):
        torch.testing.assert_close(weights, found.weights())
    for form in FORMS:
        with pytest.raises(UnavailableError, match=r"no cross-attention.*trace\.attentions"):
            getattr(trace, form)


def test_several_passes_are_a_tuple_each():
    model = Stack(True, True)
    with regard.capture(model) as trace:
        for length in (5, 3, 4):
            model(words(1, length, 8))
    assert [[w.shape[2] for w in step] for step in trace.attentions] == [[5, 5], [3, 3], [4, 4]]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("grad", [True, False], ids=["slow path", "fast path"])
def test_transformer_of_torch(layers, grad):
    model = nn.Transformer(8, 2, layers, layers, 16, batch_first=True).eval()
    with torch.set_grad_enabled(grad), regard.capture(model) as trace:
        model(words(2, 5, 8), words(2, 3, 8))
    shapes = [[tuple(w.shape) for w in getattr(trace, form)] for form in FORMS]
    assert shapes == [[(2, 2, 5, 5)] * layers, [(2, 2, 3, 3)] * layers, [(2, 2, 3, 5)] * layers]
    with pytest.raises(UnavailableError, match=r"encoder_attentions.*cross_attentions"):
        _ = trace.attentions


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("build", [bart, t5])
def test_encoder_and_decoder(build, layers):
    model = build(layers)
    given = {"input_ids": ids(2, 7), "decoder_input_ids": ids(2, 4)}
    with torch.no_grad(), regard.capture(model) as trace:
        model(**given)
    theirs = eagerly(model, lambda: model(**given, output_attentions=True))
    for form in FORMS:
        same(getattr(trace, form), getattr(theirs, form))


@pytest.mark.parametrize("build", [bart, t5])
def test_generate_with_encoder_and_decoder(build):
    model = build()
    asked = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    with torch.no_grad(), regard.capture(model) as trace:
        model.generate(ids(2, 7), **asked)
    theirs = eagerly(model, lambda: model.generate(ids(2, 7), output_attentions=True, **asked))
    assert len(trace.decoder_attentions) == 4
    for form in FORMS:
        same(getattr(trace, form), getattr(theirs, form))


def test_generate():
    model = gpt2()
    asked = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True}
    asked |= {"pad_token_id": 0, "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    with torch.no_grad(), regard.capture(model) as trace:
        model.generate(ids(2, 5), **asked)
    theirs = eagerly(model, lambda: model.generate(ids(2, 5), output_attentions=True, **asked))
    same(trace.attentions, theirs.attentions)


def test_the_comparison_can_fail():
    model = gpt2()
    with torch.no_grad(), regard.capture(model) as trace:
        model(ids(1, 5))
    for wrong in (
        trace.attentions[::-1],
        trace.attentions[:1],
        tuple(w.flip(1) for w in trace.attentions),
        (trace.attentions,),
    ):
        with pytest.raises((AssertionError, TypeError)):
            same(wrong, trace.attentions)


def test_labels_that_were_corrected_count():
    """Data flow erred: what `relabel` says is what the forms go by."""
    trace = Trace(
        [
            record("encoder.0.attn", attends="self"),
            record("decoder.0.attn", attends="self"),
            record("decoder.0.other", attends="unknown"),
        ]
    )
    with pytest.raises(UnavailableError):
        _ = trace.cross_attentions
    right = trace.relabel({"decoder.0.other": "cross"})
    assert [len(getattr(right, form)) for form in FORMS] == [1, 1, 1]


def test_only_cross_attention_is_said_to_be_there():
    trace = Trace([record(f"decoder.{number}.attn", attends="cross") for number in range(2)])
    said = (
        r"the trace has cross-attention alone: take trace\.cross_attentions \(decoder\.0\.attn and"
    )
    with pytest.raises(UnavailableError, match=said):
        _ = trace.attentions


def test_stacks_without_layer_numbers():
    paths = {"enc.a": "self", "enc.b": "self", "dec.own": "self", "dec.first": "cross"}
    trace = Trace([record(path, attends=attends) for path, attends in paths.items()])
    lengths = [len(getattr(trace, form)) for form in FORMS]
    assert lengths == [2, 1, 1]
