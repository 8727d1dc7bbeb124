"""Graph networks. One graph is a batch of one: weights (1, head, target node, source node)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .target import Target
from .truth import Run, dense, each

NODES, FEATURES, HEADS = 9, 12, 4
PLAIN = each("b h q k -> b h q k")
SOFTMAX = "torch_geometric.utils:softmax"


def graph(nodes: int = NODES) -> torch.Tensor:
    """Edges (2, edge), from source to target: a ring, and some more."""
    ring = torch.arange(nodes)
    more = torch.randint(nodes, (2, 2 * nodes))
    edges = torch.cat([torch.stack([ring, (ring + 1) % nodes]), more], 1)
    return torch.unique(edges[:, edges[0] != edges[1]], dim=1)


def conv(name: str, *args: Any, **kwargs: Any):
    def build():
        from torch_geometric import nn as layers

        x, edges = torch.randn(NODES, FEATURES), graph()
        return getattr(layers, name)(FEATURES, 5, *args, **kwargs), (x, edges), {}

    return build


def attention(run: Run) -> list[torch.Tensor]:
    """Edge weights that the layer returns when it is asked to."""
    with torch.no_grad():
        _, (edges, weights) = run.model(*run.args, return_attention_weights=True)
    return [dense(weights, edges, NODES)]


def by_edges(edges: torch.Tensor, run: Run, nodes: int = NODES) -> list[torch.Tensor]:
    """Recorded softmaxes over a list of edges, which is the same for all."""
    return [dense(c.weights, edges, nodes) for c in run.calls if c.function == SOFTMAX]


def with_edge_features(name: str, **kwargs: Any):
    def build():
        from torch_geometric import nn as layers

        x, edges = torch.randn(NODES, FEATURES), graph()
        model = getattr(layers, name)(FEATURES, 5, heads=HEADS, edge_dim=3, **kwargs)
        return model, (x, edges, torch.randn(edges.shape[1], 3)), {}

    return build


def bipartite():
    from torch_geometric.nn import GATv2Conv

    x = (torch.randn(7, FEATURES), torch.randn(NODES, 6))
    edges = torch.stack([torch.randint(7, (25,)), torch.randint(NODES, (25,))])
    model = GATv2Conv((FEATURES, 6), 5, heads=HEADS, add_self_loops=False)
    return model, (x, torch.unique(edges, dim=1)), {}


def bipartite_truth(run: Run) -> list[torch.Tensor]:
    with torch.no_grad():
        _, (edges, weights) = run.model(*run.args, return_attention_weights=True)
    return [dense(weights, edges, NODES, 7)]


def hetero():
    from torch_geometric.nn import HGTConv

    x = {"author": torch.randn(6, FEATURES), "paper": torch.randn(8, FEATURES)}
    kinds = [("author", "writes", "paper"), ("paper", "cites", "paper")]
    pairs = {
        kind: torch.stack([torch.randint(len(x[kind[0]]), (14,)), torch.randint(8, (14,))])
        for kind in kinds
    }
    pairs = {kind: torch.unique(edges, dim=1) for kind, edges in pairs.items()}
    return HGTConv(FEATURES, 16, (list(x), kinds), heads=HEADS), (x, pairs), {}


def hetero_truth(run: Run) -> list[torch.Tensor]:
    """Keys are the source nodes of each kind of edge in turn; queries all nodes."""
    bipartite_, softmax = run.calls
    return [dense(softmax.weights, bipartite_.weights[0], 14, 14)]


def point_transformer():
    from torch_geometric.nn import PointTransformerConv

    model = PointTransformerConv(FEATURES, 5, add_self_loops=False)
    return model, (torch.randn(NODES, FEATURES), torch.randn(NODES, 3), graph()), {}


def pooled(make: Any):
    """An aggregation of two graphs with 4 and 7 nodes."""

    def build():
        from torch_geometric.nn import aggr

        x = torch.randn(11, FEATURES)
        return make(aggr), (x, torch.tensor([0] * 4 + [1] * 7)), {}

    return build


def pooled_truth(run: Run) -> list[torch.Tensor]:
    """Each graph looks at its nodes."""
    edges = torch.stack([torch.arange(11), run.args[1]])
    return [dense(call.weights, edges, 2, 11) for call in run.calls if call.function == SOFTMAX]


def gps(kind: str):
    def build():
        from torch_geometric.nn import GINConv, GPSConv

        inner = GINConv(nn.Linear(FEATURES, FEATURES))
        model = GPSConv(FEATURES, inner, heads=HEADS, attn_type=kind)
        batch = torch.tensor([0] * 3 + [1] * 6)
        return model, (torch.randn(NODES, FEATURES), graph(), batch), {}

    return build


def dense_gat():
    from torch_geometric.nn import DenseGATConv

    links = (torch.rand(2, NODES, NODES) > 0.6).float()
    return DenseGATConv(FEATURES, 5, heads=HEADS), (torch.randn(2, NODES, FEATURES), links), {}


def attentive_fp():
    from torch_geometric.nn.models import AttentiveFP

    model = AttentiveFP(FEATURES, 8, 3, edge_dim=5, num_layers=2, num_timesteps=2)
    edges, batch = graph(), torch.tensor([0] * 4 + [1] * 5)
    return model, (torch.randn(NODES, FEATURES), edges, torch.randn(edges.shape[1], 5), batch), {}


def attentive_fp_truth(run: Run) -> list[torch.Tensor]:
    """Two layers over atoms, then two readouts in which each molecule looks at its atoms."""
    atoms = [dense(call.weights, run.args[1], NODES) for call in run.calls[:2]]
    pairs = torch.stack([torch.arange(NODES), run.args[3]])
    return atoms + [dense(call.weights, pairs, 2, NODES) for call in run.calls[2:]]


def stack(name: str, **kwargs: Any):
    def build():
        from torch_geometric.nn import models

        model = getattr(models, name)(FEATURES, 16, 3, 5, heads=HEADS, **kwargs)
        return model, (torch.randn(NODES, FEATURES), graph()), {}

    return build


def stack_truth(run: Run) -> list[torch.Tensor]:
    """GATConv appends self-loops to the edges."""
    loops = torch.arange(NODES).expand(2, -1)
    return by_edges(torch.cat([run.args[1], loops], 1), run)


def rgat():
    from torch_geometric.nn import RGATConv

    edges = graph()
    model = RGATConv(FEATURES, 5, num_relations=3, heads=HEADS, mod=None)
    return model, (torch.randn(NODES, FEATURES), edges, torch.randint(3, edges.shape[1:])), {}


def general():
    from torch_geometric.nn import GeneralConv

    model = GeneralConv(FEATURES, 5, attention=True, heads=HEADS, attention_type="dot_product")
    return model, (torch.randn(NODES, FEATURES), graph()), {}


def plain(run: Run) -> list[torch.Tensor]:
    return by_edges(run.args[1], run)


def geometry(run: Run) -> list[torch.Tensor]:
    """Vector attention has weights of their own for each channel, which stand where heads do."""
    return by_edges(run.args[2], run)


def conv1(name: str, *args: Any, **kwargs: Any):
    def build():
        from torch_geometric import nn as layers

        x, edges = torch.randn(NODES, FEATURES), graph()
        return getattr(layers, name)(*args, **kwargs), (x, edges), {}

    return build


def dna():
    from torch_geometric.nn import DNAConv

    return DNAConv(16, heads=4, groups=4), (torch.randn(NODES, 3, 16), graph()), {}


RESTRICTED = "torch_geometric.nn.conv.dna_conv:restricted_softmax"
PYG = "torch_geometric"
ONE = (SOFTMAX,)
HETERO = ("torch_geometric.nn.conv.hgt_conv:construct_bipartite_edge_index", SOFTMAX)
TARGETS = [
    Target("GATConv", PYG, conv("GATConv", heads=HEADS), attention, "self", quick=True),
    Target("GATv2Conv", PYG, conv("GATv2Conv", heads=HEADS), attention, "self"),
    Target("GATv2Conv, two kinds of nodes", PYG, bipartite, bipartite_truth, "cross"),
    Target("TransformerConv", PYG, conv("TransformerConv", heads=HEADS), attention, "self"),
    Target(
        "TransformerConv, edge features", PYG,
        with_edge_features("TransformerConv", beta=True), plain, "self", ONE,
    ),
    Target(
        "GATConv, edge features", PYG,
        with_edge_features("GATConv", add_self_loops=False), plain, "self", ONE,
    ),
    Target("SuperGATConv", PYG, conv("SuperGATConv", heads=HEADS), stack_truth, "self", ONE),
    Target("AGNNConv", PYG, conv1("AGNNConv", add_self_loops=False), plain, "self", ONE),
    Target("RGATConv", PYG, rgat, plain, "self", ONE),
    Target("GeneralConv", PYG, general, plain, "self", ONE),
    Target("HGTConv", PYG, hetero, hetero_truth, None, HETERO),
    Target("PointTransformerConv", PYG, point_transformer, geometry, "self", ONE),
    Target("GPSConv", PYG, gps("multihead"), PLAIN, "self"),
    Target("GPSConv, performer", PYG, gps("performer")),
    Target("DenseGATConv", PYG, dense_gat, each("b q k h -> b h q k"), "self"),
    Target("AttentiveFP", PYG, attentive_fp, attentive_fp_truth, None, ONE),
    Target("GAT, three layers", PYG, stack("GAT"), stack_truth, "self", ONE),
    Target(
        "AttentionalAggregation", PYG,
        pooled(lambda aggr: aggr.AttentionalAggregation(nn.Linear(FEATURES, 1))),
        pooled_truth, None, ONE,
    ),
    Target(
        "Set2Set", PYG, pooled(lambda aggr: aggr.Set2Set(FEATURES, 3)),
        pooled_truth, "cross", ONE,
    ),
    Target(
        "SetTransformerAggregation", PYG,
        pooled(lambda aggr: aggr.SetTransformerAggregation(FEATURES, 3, heads=HEADS)),
        PLAIN, ("self", "cross", "self"),
    ),
    Target(
        "GraphMultisetTransformer", PYG,
        pooled(lambda aggr: aggr.GraphMultisetTransformer(FEATURES, 5, heads=HEADS)),
        PLAIN, ("cross", "self", "cross"),
    ),
    # each edge is an example: its last layer looks at all layers of the other end
    Target("DNAConv", PYG, dna, PLAIN, None, (RESTRICTED,)),
    Target("GCNConv", PYG, conv("GCNConv")),
    Target("FeaStConv", PYG, conv("FeaStConv", heads=HEADS)),
]  # fmt: skip
