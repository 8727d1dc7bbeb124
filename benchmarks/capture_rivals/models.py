"""The models that are timed. Weights are random: time and memory do not depend on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CLIPConfig,
    CLIPModel,
    EsmConfig,
    EsmModel,
    LlamaConfig,
    LlamaForCausalLM,
    Wav2Vec2ConformerConfig,
    Wav2Vec2ConformerModel,
)

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


def esm(layers: int = 6, width: int = 320, heads: int = 20) -> EsmModel:
    """The sizes of the smallest ESM-2, with rotary positions."""
    torch.manual_seed(0)
    config = EsmConfig(
        vocab_size=33,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        position_embedding_type="rotary",
        token_dropout=True,
        mask_token_id=32,
        pad_token_id=1,
    )
    return EsmModel(config).eval()


def clip(layers: int = 4, width: int = 192, heads: int = 4) -> CLIPModel:
    """Two small towers: 49 patches and a text."""
    torch.manual_seed(0)
    tower = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    text = {**tower, "vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2}
    vision = {**tower, "image_size": 112, "patch_size": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)).eval()


def conformer(layers: int = 4, width: int = 144, heads: int = 4) -> Wav2Vec2ConformerModel:
    """A speech encoder whose attention is written out, with relative positions."""
    torch.manual_seed(0)
    config = Wav2Vec2ConformerConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        conv_dim=(64, 64, 64),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4),
        num_feat_extract_layers=3,
        position_embeddings_type="relative",
        conv_depthwise_kernel_size=15,
        num_conv_pos_embedding_groups=4,
        num_conv_pos_embeddings=16,
        apply_spec_augment=False,
    )
    return Wav2Vec2ConformerModel(config).eval()


class LocationAware(nn.Module):
    """A decoder that attends by content and by where it attended before (Chorowski et al. 2015)."""

    def __init__(self, width: int = 128, steps: int = 20) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.LSTMCell(width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.convolution = nn.Conv1d(1, 16, 15, padding=7, bias=False)
        self.location = nn.Linear(16, width, bias=False)
        self.score = nn.Linear(width, 1)

    def forward(self, memory: Tensor) -> Tensor:
        """(batch, key, width) to (batch, step, width)."""
        batch, keys, width = memory.shape
        key = self.key(memory)
        hidden = cell = context = memory.new_zeros(batch, width)
        weights = memory.new_full((batch, keys), 1 / keys)
        contexts = []
        for _ in range(self.steps):
            hidden, cell = self.cell(context, (hidden, cell))
            seen = self.location(self.convolution(weights[:, None]).transpose(1, 2))
            scores = self.score(torch.tanh(self.query(hidden)[:, None] + key + seen)).squeeze(2)
            weights = scores.softmax(-1)  # (batch, key)
            context = torch.bmm(weights[:, None], memory).squeeze(1)
            contexts.append(context)
        return torch.stack(contexts, 1)
