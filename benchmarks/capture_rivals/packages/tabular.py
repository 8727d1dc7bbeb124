"""Tables, recommenders, and models without softmax attention."""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from .absent import imported
from .target import Target
from .truth import Run, each

SAME = "b h q k -> b h q k"
ONE = "b 1 k -> b 1 1 k"


def ft_transformer():
    model = imported("rtdl_revisiting_models:FTTransformer")(
        n_cont_features=4, cat_cardinalities=[5, 6], d_out=2, n_blocks=2, d_block=24,
        attention_n_heads=3, attention_dropout=0.0, ffn_d_hidden=None, ffn_d_hidden_multiplier=1.5,
        ffn_dropout=0.0, residual_dropout=0.0)  # fmt: skip
    return model, (torch.randn(5, 4), torch.randint(5, (5, 2))), {}


def old_ft_transformer():
    model = imported("rtdl:FTTransformer").make_default(
        n_num_features=4, cat_cardinalities=[5, 6], n_blocks=2, last_layer_query_idx=[-1],
        kv_compression_ratio=0.5, kv_compression_sharing="headwise", d_out=2)  # fmt: skip
    return model, (torch.randn(5, 4), torch.randint(5, (5, 2))), {}


def tab(name: str, **settings: Any):
    def build():
        model = imported(f"tab_transformer_pytorch:{name}")(
            categories=(5, 6, 7, 4), num_continuous=2, dim=24, dim_out=1, depth=2, heads=3,
            dim_head=8, mlp_act=nn.ReLU(), **settings)  # fmt: skip
        return model, (torch.randint(4, (5, 4)), torch.randn(5, 2)), {}

    return build


def tabnet(mask: str):
    def build():
        model = imported("pytorch_tabnet.tab_network:TabNet")(
            input_dim=9, output_dim=2, n_steps=3, mask_type=mask,
            group_attention_matrix=torch.eye(9))  # fmt: skip
        return model, (torch.randn(5, 9),), {}

    return build


def autoint():
    model = imported("deepctr_torch.layers.interaction:InteractingLayer")(12, head_num=3)
    nn.init.normal_(model.W_Query)
    nn.init.normal_(model.W_key)
    return model, (torch.randn(5, 7, 12),), {}


def afm():
    model = imported("deepctr_torch.layers.interaction:AFMLayer")(6, attention_factor=4)
    return model, ([torch.randn(5, 1, 6) for _ in range(4)],), {}


def interest(normalised: bool):
    """Deep interest network: the history of a user, weighted by the candidate item."""

    def build():
        model = imported("deepctr_torch.layers.sequence:AttentionSequencePoolingLayer")(
            (8, 4), weight_normalization=normalised, embedding_dim=6)  # fmt: skip
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        lengths = torch.tensor([[7], [5], [3], [7], [6]])
        return model, (torch.randn(5, 1, 6), torch.randn(5, 7, 6), lengths), {}

    return build


def sasrec():
    model = imported("recbole.model.layers:TransformerEncoder")(
        n_layers=2, n_heads=3, hidden_size=24, inner_size=32)  # fmt: skip
    mask = torch.full((7, 7), -10000.0).triu(1).expand(5, 1, 7, 7)
    return model, (torch.randn(5, 7, 24), mask), {}


def vanilla():
    model = imported("recbole.model.layers:VanillaAttention")(12, 8)
    return model, (torch.randn(5, 7, 4, 12),), {}


def pooled(run: Run) -> list[dict[str, Tensor]]:
    """One query for each position, over values of its own."""
    (weights,) = run.weights
    return [{"positions as batch": rearrange(weights, "b q k -> (b q) 1 1 k"),
             "positions as queries": weights[:, None]}]  # fmt: skip


class Entmax(nn.Module):
    """Attention with sparse weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.projection, self.name = nn.Linear(24, 72), name

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.projection(x), "b n (three h d) -> three b h n d", three=3, h=3)
        return imported(f"entmax:{self.name}")(q @ k.mT, dim=-1) @ v


class Regression(nn.Module):
    """A Gaussian process: its kernel is inverted, not normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = imported("gpytorch.kernels:RBFKernel")()

    def forward(self, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
        within = self.kernel(x).to_dense() + 0.1 * torch.eye(len(x))
        return self.kernel(new, x).to_dense() @ torch.linalg.solve(within, y)


def gp_model():
    return Regression(), (torch.randn(9, 2), torch.randn(9, 1), torch.randn(5, 2)), {}


def mamba():
    module = imported("mambapy.mamba")
    return module.Mamba(module.MambaConfig(d_model=12, n_layers=2)), (torch.randn(2, 7, 12),), {}


def gated_transformer():
    module = imported("pytorch_tabular.models.common.layers.transformers")
    model = module.TransformerEncoderBlock(
        input_embed_dim=24, num_heads=3, ff_hidden_multiplier=2, transformer_head_dim=8,
        keep_attn=True)  # fmt: skip
    return model, (torch.randn(5, 7, 24),), {}


TARGETS = [
    Target("FTTransformer", "rtdl_revisiting_models", ft_transformer,
           each("(b h) q k -> b h q k", h=3), None),
    Target("FTTransformer, compressed keys", "rtdl", old_ft_transformer,
           each("(b h) q k -> b h q k", h=8), None),
    Target("TabTransformer", "tab-transformer-pytorch", tab("TabTransformer"), each(SAME), "self"),
    Target("TabNet, sparsemax", "pytorch-tabnet", tabnet("sparsemax")),
    Target("TabNet, entmax", "pytorch-tabnet", tabnet("entmax")),
    Target("AutoInt, heads before batch", "deepctr-torch", autoint, each("h b q k -> b h q k"),
           "self"),
    Target("AFM", "deepctr-torch", afm, each("b k 1 -> b 1 1 k")),
    Target("DIN, softmax", "deepctr-torch", interest(True), each(ONE), "cross"),
    Target("DIN, not normalised", "deepctr-torch", interest(False)),
    Target("SASRec", "recbole", sasrec, each(SAME), "self"),
    Target("VanillaAttention", "recbole", vanilla, pooled),
    Target("sparsemax attention", "entmax",
           lambda: (Entmax("sparsemax"), (torch.randn(2, 7, 24),), {})),
    Target("1.5-entmax attention", "entmax",
           lambda: (Entmax("entmax15"), (torch.randn(2, 7, 24),), {})),
    Target("RBF kernel regression", "gpytorch", gp_model),
    Target("Mamba", "mambapy", mamba),
    Target("TransformerEncoderBlock", "pytorch-tabular", gated_transformer, each(SAME), "self"),
]  # fmt: skip
