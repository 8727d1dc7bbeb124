"""What `trace.report()` costs beside the forward pass of the model.

A BERT of 12 layers, 12 heads and width 768 with random weights (the cost does not depend on them),
interleaved with its own forward pass in one process, on one thread. The report has every figure:
tokens are given.

    python benchmarks/report.py [--quick]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from timing import interleaved, table

import regard
from regard.aggregate.statistics.head_divergence import head_divergence

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

os.environ["HF_HUB_OFFLINE"] = "1"
BAR = 2.0


def bert(layers: int) -> torch.nn.Module:
    """BERT-base in its default implementation, without the pooler."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, max_position_embeddings=2048)
    return BertModel(config, add_pooling_layer=False).eval()


def dense(trace: regard.Trace, tokens: torch.Tensor) -> list[torch.Tensor]:
    """Some of the same figures from full matrices, as people do it today."""
    found = []
    for record in trace:
        weights = record.weights()
        place = torch.arange(weights.shape[-1])
        distance = (place - place[:, None]).abs()
        found += [
            -torch.xlogy(weights, weights).sum(-1).mean((0, 2)),
            (1 / weights.square().sum(-1)).mean((0, 2)),
            (weights * distance).sum(-1).mean((0, 2)),
            weights.diagonal(0, 2, 3).mean((0, 2)),
            weights.diagonal(-1, 2, 3).mean((0, 2)),
            weights.diagonal(1, 2, 3).mean((0, 2)),
            (weights * (distance <= 4)).sum(-1).mean((0, 2)),
            (weights * (tokens[:, None, :, None] == tokens[:, None, None])).sum(-1).mean((0, 2)),
        ]
    return found


def cost(model: torch.nn.Module, shapes: list[tuple[int, int]], repeats: int) -> None:
    rows = []
    for batch, length in shapes:
        tokens = torch.randint(0, 3000, (batch, length))
        trace = regard.trace(model, tokens)
        calls = {
            "forward": lambda tokens=tokens: model(tokens),
            "report": lambda trace=trace, tokens=tokens: trace.report(tokens),
            "dense": lambda trace=trace, tokens=tokens: dense(trace, tokens),
        }
        taken = interleaved(calls, repeats)
        ratios = [f"{taken[name] / taken['forward']:.2f}" for name in ("report", "dense")]
        bar = f"{BAR:.2f}" if (batch, length) == (1, 512) else ""
        seconds = [f"{1000 * taken[name]:.0f}" for name in ("forward", "report")]
        rows.append([str(batch), str(length), *seconds, ratios[0], bar, ratios[1]])
    head = [
        "batch",
        "tokens",
        "forward ms",
        "report ms",
        "× forward",
        "bar",
        "dense way, × forward",
    ]
    heads = sum(record.shape.heads for record in trace)
    table(f"trace.report() of {len(trace)} layers, {heads} heads", head, rows)


def similarity(model: torch.nn.Module, length: int, repeats: int) -> None:
    tokens = torch.randint(0, 3000, (1, length))
    trace = regard.trace(model, tokens)
    calls = {
        "forward": lambda: model(tokens),
        "heads of a layer": lambda: head_divergence(trace),
        "heads of all layers": lambda: head_divergence(trace, between_layers=True),
    }
    taken = interleaved(calls, repeats)
    rows = [[name, f"{taken[name] / taken['forward']:.2f}"] for name in list(calls)[1:]]
    title = f"Jensen–Shannon divergences, {len(trace)} layers, {length} tokens"
    table(title, ["between", "× forward"], rows)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, under a minute")
    quick = parser.parse_args().quick
    restart_where_needed()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread")
    model = bert(12)
    cost(model, [(1, 16), (1, 128), (1, 512)], 3 if quick else 9)
    if not quick:
        cost(model, [(8, 64), (1, 2048)], 3)
    similarity(model, 128 if quick else 512, 1 if quick else 3)


if __name__ == "__main__":
    main()
