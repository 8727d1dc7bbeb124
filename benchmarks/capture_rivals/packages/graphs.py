"""Graph networks. One graph is a batch of one: weights (1, head, target node, source node)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .target import Target
from .truth import Run, dense

NODES, FEATURES, HEADS = 9, 12, 4
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


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        from torch_geometric.nn import GATConv

        super().__init__()
        self.first, self.second = GATConv(FEATURES, 5, heads=HEADS), GATConv(5 * HEADS, 3)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


def two_layers(run: Run) -> list[torch.Tensor]:
    x, edges = run.args
    with torch.no_grad():
        hidden, (first_edges, first) = run.model.first(x, edges, return_attention_weights=True)
        _, (second_edges, second) = run.model.second(
            hidden.relu(), edges, return_attention_weights=True
        )
    return [dense(first, first_edges, NODES), dense(second, second_edges, NODES)]


PYG = "torch_geometric"
TARGETS = [
    Target("GATConv", PYG, conv("GATConv", heads=HEADS), attention, "self", quick=True),
    Target("GATv2Conv", PYG, conv("GATv2Conv", heads=HEADS), attention, "self"),
    Target("TransformerConv", PYG, conv("TransformerConv", heads=HEADS), attention, "self"),
    Target(
        "GAT, two layers", PYG,
        lambda: (TwoLayers(), (torch.randn(NODES, FEATURES), graph()), {}), two_layers, "self",
    ),
]  # fmt: skip
