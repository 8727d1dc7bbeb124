"""The models that are timed. Weights are random: time and memory do not depend on them."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

VOCABULARY = 64  # small, so that the language model's head, which only one rival needs, is nothing


def masked_lm(
    implementation: str, length: int, *, layers: int = 6, width: int = 384, heads: int = 12
) -> BertForMaskedLM:
    """A BERT whose `.bert` is the encoder; the same weights whatever the implementation."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=length,
        attn_implementation=implementation,
        # Larger than for training: with 0.02 every weight would be 1 / keys.
        initializer_range=0.1,
        architectures=["BertForMaskedLM"],
    )
    return BertForMaskedLM(config).eval()


def llama() -> LlamaForCausalLM:
    """Four layers, 256 wide, four heads: so small that Python is most of a step."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


def tokens(batch: int, length: int) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(1, VOCABULARY, (batch, length), generator=random)
