"""Small models that generate, and the ways they do it, for the tests of `regard.stitch`."""

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import regard

WORDS, PROMPT, NEW = 24, 5, 6
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
GROUPS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": None}


def llama(ends=None, seed=0, **changes):
    torch.manual_seed(seed)
    options = {**SIZES, **GROUPS, **TEXT, "initializer_range": 0.3, "eos_token_id": ends}
    return LlamaForCausalLM(LlamaConfig(**(options | changes))).eval()


def mistral(window=4):
    torch.manual_seed(0)
    options = {**SIZES, **GROUPS, **TEXT, "initializer_range": 0.3, "eos_token_id": None}
    return MistralForCausalLM(MistralConfig(**options, sliding_window=window)).eval()


def gpt2(ends=None, seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(
        **TEXT, n_embd=16, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=ends
    )
    return GPT2LMHeadModel(config).eval()


def t5():
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    return T5ForConditionalGeneration(config).eval()


def bart():
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=WORDS,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        eos_token_id=None,
        forced_eos_token_id=None,
        pad_token_id=0,
        init_std=0.3,
    )
    return BartForConditionalGeneration(config).eval()


WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"do_sample": False, "num_beams": 3, "output_scores": True},
    "all beams": {
        "do_sample": False,
        "num_beams": 3,
        "num_return_sequences": 3,
        "output_scores": True,
    },
    "sampled beams": {"do_sample": True, "num_beams": 3, "output_scores": True},
}


def prompt(batch=2, length=PROMPT):
    return torch.randint(3, WORDS, (batch, length), generator=torch.Generator().manual_seed(1))


def generate(model, ids, way, **options):
    """What was captured, and what `generate` returned."""
    torch.manual_seed(3)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, **way, **options}
    with torch.no_grad(), regard.capture(model) as trace:
        output = model.generate(ids, return_dict_in_generate=True, **options)
    return trace, output
