"""What reuse layers cost: forward and backward, relative to an attention layer of the same width.

One thread, 512 tokens, heads of width 64 and of 32, interleaved in one process. The weights are
computed beforehand; they and the features require gradients. The attention layer is `MultiHead`
without weights.
Rows without a bar: the cost of computing the weights, which is the attention's, and summaries by
plain operations, without the pieces of `regard.reuse.summaries`.

    python benchmarks/reuse.py [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from timing import interleaved, table
from torch import Tensor, nn

from regard import masks
from regard.mechanisms import MultiHead
from regard.reuse import (
    Concatenation,
    GatedFlow,
    LearnedHeadMix,
    LowRankCode,
    OffsetBins,
    OwnProjections,
    PositionSummaries,
    ProjectedRows,
    WeightedAggregation,
    interpolated,
    summaries,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

LENGTH, BAR = 512, 1.15


def layers(width: int, heads: int, weights: Tensor) -> dict[str, nn.Module]:
    low = LowRankCode(heads, 8)
    low.fit(weights.detach()[:1])
    return {
        "aggregation, own slices": WeightedAggregation(width, heads),
        "aggregation, own projections": WeightedAggregation(
            width, heads, heads=OwnProjections(width, heads)
        ),
        "aggregation, mean": WeightedAggregation(width, heads, heads="mean"),
        "aggregation, max": WeightedAggregation(width, heads, heads="max"),
        "aggregation, learned mix": WeightedAggregation(width, heads, heads=LearnedHeadMix(heads)),
        "gate, self, four summaries": GatedFlow(width, heads),
        "gate, query": GatedFlow(width, heads, side="query"),
        "gate, key": GatedFlow(width, heads, side="key"),
        "gate, learned mix": GatedFlow(width, heads, heads=LearnedHeadMix(heads)),
        "concatenation, summaries": Concatenation(width, PositionSummaries(heads)),
        "concatenation, pooled rows": Concatenation(width, ProjectedRows(heads, 32)),
        "concatenation, interpolated rows": Concatenation(
            width, ProjectedRows(heads, 32, resample=interpolated)
        ),
        "concatenation, low rank": Concatenation(width, low),
        "concatenation, offsets": Concatenation(width, OffsetBins(heads, 32)),
    }


def cost(batch: int, width: int, heads: int, repeats: int) -> None:
    torch.manual_seed(0)
    attn, x = MultiHead(width, heads), torch.randn(batch, LENGTH, width, requires_grad=True)
    weights = attn(x, weights=True).weights.detach().requires_grad_()
    keep = torch.ones(batch, LENGTH, dtype=torch.bool)
    keep[:, 400:] = False
    padding = masks.padding(keep)
    calls = {"attention": there_and_back(lambda: attn(x).output, attn, x)}
    reusing = layers(width, heads, weights)
    for name, layer in reusing.items():
        run = lambda layer=layer: layer(x, weights)
        calls[name] = there_and_back(run, layer, x, weights)
    for name in ("aggregation, own slices", "gate, self, four summaries", "concatenation, offsets"):
        run = lambda layer=reusing[name]: layer(x, weights, mask=padding)
        calls[f"{name}, padding"] = there_and_back(run, reusing[name], x, weights)
    below = list(calls)
    calls["attention, weights used"] = there_and_back(lambda: _used(attn(x, weights=True)), attn, x)
    calls["the same, then the gate"] = there_and_back(
        lambda: reusing["gate, self, four summaries"](x, attn(x, weights=True)), attn, x
    )
    for name in ("gate, self, four summaries", "concatenation, summaries"):
        run = lambda layer=reusing[name]: plainly(layer, x, weights)
        calls[f"{name}, plainly"] = there_and_back(run, reusing[name], x, weights)
    taken = interleaved(calls, repeats)
    rows = [
        [name, f"{taken[name] / taken['attention']:.2f}", f"{BAR:.2f}" if name in below else ""]
        for name in calls
        if name != "attention"
    ]
    title = f"forward and backward, batch {batch}, {LENGTH} tokens, width {width}, {heads} heads; "
    title += f"attention {1000 * taken['attention']:.0f} ms"
    table(title, ["layer", "× attention", "bar"], rows)


def _used(attended: object) -> Tensor:
    """An output that depends on the weights too, so that the way back goes through them."""
    return attended.output + attended.weights.mean()  # type: ignore[attr-defined]


def plainly(layer: nn.Module, *inputs: Tensor) -> Tensor:
    """A layer whose summaries are computed by plain operations."""
    with mock.patch.object(summaries, "summarise", summaries.summarise_plainly):
        return layer(*inputs)


def there_and_back(
    call: Callable[[], Tensor], layer: nn.Module, *inputs: Tensor
) -> Callable[[], None]:
    """Forward, and backward with a gradient that is there already."""
    gradient = torch.randn_like(call())

    def run() -> None:
        for tensor in (*inputs, *layer.parameters()):
            tensor.grad = None
        call().backward(gradient)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, under a minute")
    quick = parser.parse_args().quick
    restart_where_needed()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, float32")
    for sizes in [(2, 512, 8)] if quick else [(4, 512, 8), (2, 768, 12), (1, 512, 8), (2, 256, 8)]:
        cost(*sizes, repeats=5 if quick else 15)


if __name__ == "__main__":
    main()
