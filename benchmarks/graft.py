"""What a graft adds to the forward pass of the model it is on.

    python benchmarks/graft.py [--quick]

The pretrained MiniLM (6 layers, width 384) as it is, as it is once more, and with grafts, in eval
mode, in one process. Each round has another order, and each call one before it that does not count,
so that none pays for its forerunner. What "as it is, again" adds is the noise. Bar: a pooling query
adds at most 3 % at every size, besides the noise.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from timing import table
from torch import nn

from regard.cli import packaged
from regard.grafting import Latents, OutputAttention, ReuseLayer, ZeroProjection, graft
from regard.grafting.parts import Part
from regard.mechanisms import DotProduct, MultiHead
from regard.reuse import GatedFlow, WeightedAggregation

BAR = 0.03
BASE, AGAIN = "as it is", "as it is, again"
#: Batch, length, repeats.
QUICK = [(8, 128, 15)]
FULL = [(1, 32, 200), (8, 128, 41), (4, 512, 15)]
LAST = "encoder.layer.5"


def _output(attention: nn.Module) -> Part:
    return OutputAttention(
        attention,
        query=Latents(1, 384),
        reads=LAST,
        into="pooler",
        join=ZeroProjection(384, 384),
        mask="attention_mask",
    )


def _reuse(layer: nn.Module) -> Part:
    return ReuseLayer(layer, reads="encoder.layer.0.attention", into=LAST)


PARTS: dict[str, Callable[[], Part]] = {
    "pooling query": lambda: _output(DotProduct()),
    "pooling query, MultiHead(384, 4)": lambda: _output(MultiHead(384, 4)),
    "reuse, WeightedAggregation": lambda: _reuse(WeightedAggregation(384, 12)),
    "reuse, GatedFlow": lambda: _reuse(GatedFlow(384, 12)),
}


def measured(model: nn.Module, given: dict[str, torch.Tensor], repeats: int) -> dict[str, float]:
    """Median seconds of processor time: one model, with each part on it in turn.

    (A copy of the model for each part would not do: other memory is a few percent by itself.)
    """
    parts = {BASE: None, AGAIN: None, **{name: build() for name, build in PARTS.items()}}
    taken: dict[str, list[float]] = {name: [] for name in parts}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(parts), len(parts)):
            part = parts[name]
            grafted = None if part is None else graft(model, part)
            model(**given)
            start = time.process_time()
            model(**given)
            taken[name].append(time.process_time() - start)
            if grafted is not None:
                grafted.remove()
    return {name: statistics.median(times) for name, times in taken.items()}


def batch_of(size: int, length: int) -> dict[str, torch.Tensor]:
    """A batch whose second half of the examples is padded by a quarter."""
    mask = torch.ones(size, length, dtype=torch.long)
    mask[(size + 1) // 2 :, -(length // 4) :] = 0
    return {"input_ids": torch.randint(1000, 20000, (size, length)), "attention_mask": mask}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, one size")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    model = packaged.minilm().model
    rows = []
    for size, length, repeats in QUICK if quick else FULL:
        times = measured(model, batch_of(size, length), repeats)
        for name, seconds in times.items():
            more = f"{seconds / times[BASE] - 1:+.1%}"
            bar = f"at most {BAR:.0%}" if name == "pooling query" else ""
            rows.append([f"{size} × {length}", name, f"{1000 * seconds:.1f}", more, bar])
    table(
        "Forward pass of MiniLM with a graft, milliseconds of processor time, one thread",
        ["batch × length", "graft", "ms", "added", "bar"],
        rows,
    )


if __name__ == "__main__":
    main()
