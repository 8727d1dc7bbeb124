"""Points, molecules and proteins. Gathered neighbours may be read as they are, or as all points."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from einops import rearrange

from .target import Target
from .truth import Run, each, listed, scattered

PLAIN = each("b h q k -> b h q k")
MERGED = each("(b h) q k -> b h q k", b=2)
BATCH, POINTS, NEAR = 2, 9, 5


def nearest(points: torch.Tensor, count: int, own: bool) -> torch.Tensor:
    """The nearest points (batch, 1, point, slot): with the point itself, or others after it."""
    distances = torch.cdist(points, points)
    if own:
        return distances.topk(count, largest=False).indices[:, None]
    apart = distances + torch.eye(points.shape[1]) * 1e6
    others = apart.topk(count, largest=False).indices
    first = torch.arange(points.shape[1])[None, :, None].expand(len(points), -1, 1)
    return torch.cat([first, others], -1)[:, None]


def point_layer(**settings: Any):
    def build():
        from point_transformer_pytorch import PointTransformerLayer

        model = PointTransformerLayer(
            dim=12, pos_mlp_hidden_dim=8, attn_mlp_hidden_mult=2, **settings
        )
        return model, (torch.randn(BATCH, POINTS, 12), torch.randn(BATCH, POINTS, 3)), {}

    return build


def point_neighbours(run: Run) -> list[dict[str, torch.Tensor]]:
    weights = rearrange(run.weights[0], "b q s d -> b d q s")
    full = scattered(weights, nearest(run.args[1], NEAR, own=True), POINTS)
    return [{"": full, "gathered keys": weights}]


def se3():
    from se3_transformer_pytorch import SE3Transformer

    model = SE3Transformer(
        dim=16, heads=4, depth=1, dim_head=8, num_degrees=2, num_neighbors=NEAR, valid_radius=10
    )
    points = torch.randn(BATCH, POINTS, 3)
    mask = torch.ones(BATCH, POINTS, dtype=torch.bool)
    return model, (torch.randn(BATCH, POINTS, 16), points, mask), {"return_type": 0}


def equiformer():
    from equiformer_pytorch import Equiformer

    model = Equiformer(
        num_tokens=24, dim=(8, 6), dim_head=(4, 4), heads=(4, 3), num_degrees=2, depth=1,
        num_neighbors=NEAR, attend_self=True, reduce_dim_out=True, l2_dist_attention=False,
    )  # fmt: skip
    points = torch.randn(BATCH, POINTS, 3)
    mask = torch.ones(BATCH, POINTS, dtype=torch.bool)
    return model, (torch.randint(24, (BATCH, POINTS)), points, mask), {}


def neighbours(pattern: str):
    """Each point looks at itself and then at its nearest ones."""

    def truth(run: Run) -> list[dict[str, torch.Tensor]]:
        sites = []
        for weights in run.weights:
            weights = rearrange(weights, pattern)
            full = scattered(weights, nearest(run.args[1], NEAR, own=False), POINTS)
            sites.append({"": full, "gathered keys": weights})
        return sites

    return truth


def egnn():
    from egnn_pytorch import EGNN_Network

    model = EGNN_Network(
        num_tokens=21, num_positions=16, dim=32, depth=2, num_nearest_neighbors=4,
        global_linear_attn_every=1, global_linear_attn_heads=4, global_linear_attn_dim_head=6,
        num_global_tokens=3,
    )  # fmt: skip
    return model, (torch.randint(21, (BATCH, POINTS)), torch.randn(BATCH, POINTS, 3)), {}


def invariant():
    from invariant_point_attention import InvariantPointAttention

    model = InvariantPointAttention(
        dim=32, heads=4, scalar_key_dim=6, scalar_value_dim=6, point_key_dim=3, point_value_dim=3
    )
    return model, (torch.randn(BATCH, POINTS, 32),), {
        "pairwise_repr": torch.randn(BATCH, POINTS, POINTS, 32),
        "rotations": torch.eye(3).expand(BATCH, POINTS, 3, 3),
        "translations": torch.randn(BATCH, POINTS, 3),
    }  # fmt: skip


def graph_transformer():
    from graph_transformer_pytorch import GraphTransformer

    model = GraphTransformer(dim=32, depth=2, edge_dim=16, heads=4, dim_head=6, rel_pos_emb=True)
    nodes, edges = torch.randn(BATCH, POINTS, 32), torch.randn(BATCH, POINTS, POINTS, 16)
    return model, (nodes, edges), {"mask": torch.ones(BATCH, POINTS).bool()}


def en_transformer():
    from en_transformer import EnTransformer

    model = EnTransformer(dim=32, depth=1, dim_head=32, heads=4)
    return model, (torch.randn(BATCH, POINTS, 32), torch.randn(BATCH, POINTS, 3)), {}


def molecule():
    from molecule_attention_transformer import MAT

    model = MAT(
        dim_in=12, model_dim=32, dim_out=1, depth=2, Lg=0.5, Ld=0.5, La=1, dist_kernel_fn="exp"
    )
    links = torch.randint(0, 2, (BATCH, POINTS, POINTS))
    atoms, mask = torch.randn(BATCH, POINTS, 12), torch.ones(BATCH, POINTS).bool()
    return model, (atoms, mask, links, torch.rand(BATCH, POINTS, POINTS)), {}


def molecule_truth(run: Run) -> list[dict[str, torch.Tensor]]:
    """The softmax, or its sum with bonds and distances, which is what meets the values."""
    links, distances = (matrix[:, None] for matrix in run.args[2:])
    added = 0.5 * links + 0.5 * torch.exp(-distances)
    return [{"": weights, "with bonds and distances": weights + added} for weights in run.weights]


def lie():
    from lie_transformer_pytorch import LieTransformer

    model = LieTransformer(dim=32, depth=1, heads=4, dim_head=6, liftsamples=3)
    points = (torch.randn(BATCH, POINTS, 32), torch.randn(BATCH, POINTS, 3))
    return model, points, {"mask": torch.ones(BATCH, POINTS).bool()}


# proteins


def residues(*shape: int) -> torch.Tensor:
    return torch.randint(4, 24, shape)


def esm2():
    from esm.model.esm2 import ESM2

    return ESM2(num_layers=2, embed_dim=32, attention_heads=4), (residues(2, 9),), {}


def esm1b():
    import esm

    settings = Namespace(
        arch="roberta_large", embed_dim=32, layers=2, attention_heads=4, ffn_embed_dim=32,
        max_positions=64, token_dropout=True, emb_layer_norm_before=True, logit_bias=True,
        final_bias=True,
    )  # fmt: skip
    alphabet = esm.data.Alphabet.from_architecture("ESM-1b")
    return esm.model.esm1.ProteinBertModel(settings, alphabet), (residues(2, 9),), {}


def msa():
    import esm
    from esm.model.msa_transformer import MSATransformer

    settings = Namespace(
        embed_dim=32, layers=2, attention_heads=4, ffn_embed_dim=32, max_tokens_per_msa=2**14,
        dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, max_positions=64,
        embed_positions_msa=True, max_tokens=2**14, embed_positions_msa_dim=32, logit_bias=True,
    )  # fmt: skip
    alphabet = esm.data.Alphabet.from_architecture("msa_transformer")
    return MSATransformer(settings, alphabet), (residues(2, 3, 9),), {}


def columns(weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each column of each alignment is an example, in one order or the other."""
    patterns = {"": "h c n i j -> (n c) h i j", "columns first": "h c n i j -> (c n) h i j"}
    return {name: rearrange(weights, pattern) for name, pattern in patterns.items()}


def protein_bert():
    from protein_bert_pytorch import ProteinBERT

    model = ProteinBERT(
        num_tokens=21, num_annotation=33, dim=32, dim_global=24, depth=2, narrow_conv_kernel=3,
        wide_conv_kernel=3, wide_conv_dilation=2, attn_heads=4, attn_dim_head=6,
    )  # fmt: skip
    inputs = (torch.randint(21, (2, 9)), torch.randint(0, 2, (2, 33)).float())
    return model, inputs, {"mask": torch.ones(2, 9).bool()}


def tranception():
    from tranception_pytorch import Tranception

    return Tranception(dim=32, depth=2, heads=8, dim_head=6), (torch.randint(21, (2, 9)),), {}


def enformer():
    from enformer_pytorch import Enformer

    model = Enformer.from_hparams(
        dim=768, depth=1, heads=4, output_heads={"human": 5}, target_length=6
    )
    return model, (torch.rand(2, 128 * 6, 4),), {}


def enformer_truth(run):
    """Seven pools, in which each channel weighs two neighbours, and one attention."""
    pools = [rearrange(weights, "b d n p -> (b n) d 1 p") for weights in run.weights[:-1]]
    return [*pools, run.weights[-1]]


POINT = "point-transformer-pytorch"
TARGETS = [
    Target("PointTransformerLayer", POINT, point_layer(), each("b q k d -> b d q k"), "self"),
    Target("PointTransformerLayer, neighbours", POINT, point_layer(num_neighbors=NEAR),
           point_neighbours, "self"),
    Target("SE3Transformer", "se3-transformer-pytorch", se3,
           neighbours("b h q s -> b h q s"), "self"),
    Target("Equiformer", "equiformer-pytorch", equiformer,
           neighbours("b q s h -> b h q s"), "self"),
    Target("EGNN_Network", "egnn-pytorch", egnn, PLAIN, "cross"),
    Target("InvariantPointAttention", "invariant-point-attention", invariant, MERGED, "self"),
    Target("ESM-2", "fair-esm", esm2, MERGED, "self", quick=True),
    Target("ESM-1b", "fair-esm", esm1b, MERGED, "self"),
    Target("MSA Transformer", "fair-esm", msa, listed("h n i j -> n h i j", columns), "self"),
    Target("ProteinBERT", "protein-bert-pytorch", protein_bert, PLAIN),
    Target("GraphTransformer", "graph-transformer-pytorch", graph_transformer, MERGED, "self"),
    Target("EnTransformer", "En-transformer", en_transformer,
           listed("b q k h -> b h q k", "b h q k -> b h q k"), "self"),
    Target("MAT", "molecule-attention-transformer", molecule, molecule_truth, "self"),
    Target("LieTransformer", "lie-transformer-pytorch", lie, PLAIN, "self"),
    Target("Tranception", "tranception-pytorch", tranception, PLAIN, "self"),
    Target("Enformer", "enformer-pytorch", enformer, enformer_truth,
           (*[None] * 7, "self")),
]  # fmt: skip
