"""Translation and language models: attention of decoders, relative positions, caches in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .absent import imported
from .target import Target
from .truth import each

SAME = "b h q k -> b h q k"
JOEY, LIT, CURATED, EOLE = "joeynmt", "litgpt", "curated-transformers", "eole"


class JoeyTransformer(nn.Module):
    """A layer of Joey's encoder and one of its decoder."""

    def __init__(self) -> None:
        super().__init__()
        layers = imported("joeynmt.transformer_layers")
        sizes = {"size": 24, "ff_size": 32, "num_heads": 3}
        self.encoder = layers.TransformerEncoderLayer(**sizes)
        self.decoder = layers.TransformerDecoderLayer(**sizes)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor, causal: Tensor
    ) -> Tensor:
        memory = self.encoder(source, source_mask)
        return self.decoder(target, memory, source_mask, causal)[0]


def joey_transformer():
    mask = torch.ones(2, 1, 7, dtype=torch.bool)
    mask[1, :, 5:] = False
    causal = torch.ones(2, 5, 5, dtype=torch.bool).tril()
    return JoeyTransformer(), (torch.randn(2, 7, 24), torch.randn(2, 5, 24), mask, causal), {}


class JoeySteps(nn.Module):
    """Three steps over keys that were projected once."""

    def __init__(self, name: str, **sizes: int) -> None:
        super().__init__()
        self.attention = imported(f"joeynmt.attention:{name}")(**sizes)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        self.attention.compute_proj_keys(states)
        steps = [self.attention(query, mask, states)[0] for query in queries.split(1, dim=1)]
        return torch.cat(steps, dim=1)


def joey(name: str, **sizes: int):
    def build():
        mask = torch.ones(4, 1, 7, dtype=torch.bool)
        mask[1, :, 5:] = False
        return JoeySteps(name, **sizes), (torch.randn(4, 3, 10), torch.randn(4, 7, 12), mask), {}

    return build


def lit(**settings: Any):
    def build():
        module = imported("litgpt.model")
        config = imported("litgpt.config:Config")(
            n_layer=2, n_embd=24, block_size=16, padded_vocab_size=50,
            **{"n_head": 3, "n_query_groups": 3, **settings})  # fmt: skip
        return module.GPT(config), (torch.randint(50, (2, 7)),), {}

    return build


class LitSteps(nn.Module):
    """Four tokens, then one at a time, over a cache that is written in place."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        self.model.set_kv_cache(batch_size=2)
        try:
            outputs = [self.model(tokens[:, :4], torch.arange(4))]
            for step in range(4, 6):
                outputs.append(self.model(tokens[:, step : step + 1], torch.tensor([step])))
        finally:
            self.model.clear_kv_cache()
        return torch.cat(outputs, dim=1)


def lit_steps():
    model, args, kwargs = lit()()
    model.max_seq_length = 9
    return LitSteps(model), args, kwargs


def curated(kind: str, config: str, **settings: Any):
    def build():
        models = imported("curated_transformers.models")
        mask = imported("curated_transformers.layers:AttentionMask")
        options = getattr(models, config)(
            embedding_width=24, hidden_width=24, intermediate_width=32, n_hidden_layers=2,
            n_attention_heads=3, n_pieces=50, **settings)  # fmt: skip
        real = torch.ones(2, 7, dtype=torch.bool)
        real[1, 5:] = False
        return getattr(models, kind)(options), (torch.randint(50, (2, 7)), mask(real)), {}

    return build


def eole(positions: str, **settings: Any):
    def build():
        constants = imported("eole.constants:PositionEncodingType")
        models = imported("eole.config.models")
        config = models.TransformerEncoderConfig(
            hidden_size=24, heads=3, layers=2, transformer_ff=32, src_word_vec_size=24,
            position_encoding_type=constants(positions), n_positions=4, **settings)  # fmt: skip
        encoder = imported("eole.encoders.transformer:TransformerEncoder")(config)
        for parameter in encoder.parameters():
            nn.init.normal_(parameter, std=0.2)  # some are not initialised
        return encoder, (torch.randn(2, 7, 24),), {"pad_mask": torch.ones(2, 1, 7).bool()}

    return build


def fastai(name: str):
    def build():
        model = imported(f"fastai.layers:{name}")(16)
        nn.init.ones_(model.gamma)
        return model, (torch.randn(2, 16, 4, 6),), {}

    return build


def decision():
    model = imported("torchrl.modules:DecisionTransformer")(
        state_dim=4, action_dim=3,
        config={"n_embd": 24, "n_layer": 2, "n_head": 3, "n_inner": 32, "n_positions": 32,
                "activation": "relu", "resid_pdrop": 0.0, "attn_pdrop": 0.0})  # fmt: skip
    return model, (torch.randn(2, 5, 4), torch.randn(2, 5, 3), torch.randn(2, 5, 1)), {}


TARGETS = [
    Target("Transformer", JOEY, joey_transformer, each(SAME), ("self", "self", "cross")),
    Target("BahdanauAttention", JOEY, joey(
        "BahdanauAttention", hidden_size=8, key_size=12, query_size=10), each("b q k -> b 1 q k"),
        "cross"),
    Target("LuongAttention", JOEY, joey("LuongAttention", hidden_size=10, key_size=12),
           each("b q k -> b 1 q k"), "cross"),
    Target("GPT", LIT, lit(), each(SAME), "self", quick=True),
    Target("GPT, multi-query", LIT, lit(n_query_groups=1), each(SAME), "self"),
    Target("GPT with softcapping and a sliding window", LIT, lit(
        attention_logit_softcapping=20.0, sliding_window_size=3,
        sliding_window_indices=[1, 0]), each(SAME), "self"),
    Target("GPT with experts", LIT, lit(
        mlp_class_name="LLaMAMoE", n_expert=5, n_expert_per_token=2, intermediate_size=16,
        norm_class_name="RMSNorm", bias=False),
        lambda run: [w for w in run.weights if w.dim() == 4], "self"),
    Target("GPT, cache in place", LIT, lit_steps, each(SAME), "self"),
    Target("BERTEncoder", CURATED, curated(
        "BERTEncoder", "BERTConfig"), each(SAME), "self"),
    Target("encoder with relative positions", EOLE, eole("Relative"), each(SAME), "self"),
    Target("encoder with ALiBi", EOLE, eole("Alibi"), each(SAME), "self"),
    Target("SelfAttention, softmax over the first axis", "fastai", fastai("SelfAttention"),
           each("b k q -> b 1 q k"), "self"),
    Target("PooledSelfAttention2d", "fastai", fastai("PooledSelfAttention2d"),
           each("b q k -> b 1 q k"), None),
    Target("DecisionTransformer", "torchrl", decision, each(SAME), "self"),
]  # fmt: skip
