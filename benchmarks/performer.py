"""The Performer beside softmax attention: causal, batch 1, 8 heads of width 64.

    .venv/bin/python benchmarks/performer.py [--quick]

Both sides get queries, keys and values of each head; random features are made inside the time that
is measured. Every figure is a ratio of medians of processor time, taken in turn in one process.
"""

from __future__ import annotations

import argparse
import functools

import torch
import torch.nn.functional as F
from timing import interleaved, table
from torch import Tensor

from regard import masks
from regard.kernel.linear_delta_chunks import recur
from regard.mechanisms import HyperbolicFeatures, PositiveFeatures
from regard.mechanisms.random_features import RandomFeatures
from regard.recipe import Linear

HEADS, WIDTH = 8, 64
BAR, LENGTH = 3.0, 16_384


@torch.inference_mode()
def performer(features: RandomFeatures, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Features, then prefix sums in chunks."""
    mapped = features(query, "query"), features(key, "key")
    return recur(Linear(*mapped, value, mask=masks.causal())).output


@torch.inference_mode()
def softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's fused kernel."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer lengths and repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    torch.manual_seed(0)
    maps = {
        "positive, 64 rows": PositiveFeatures(WIDTH, 64),
        "positive, 256 rows": PositiveFeatures(WIDTH, 256),
        "hyperbolic, 128 rows": HyperbolicFeatures(WIDTH, 128),
    }
    rows = []
    for length in (LENGTH,) if quick else (1024, 4096, LENGTH):
        inputs = torch.randn(3, 1, HEADS, length, WIDTH).unbind()
        calls = {
            name: functools.partial(performer, features.eval(), *inputs)
            for name, features in maps.items()
        }
        calls["softmax"] = functools.partial(softmax, *inputs)
        times = interleaved(calls, 1 if quick else 5)
        for name in maps:
            speedup = times["softmax"] / times[name]
            bar = f"{BAR:.0f}" if length == LENGTH else ""
            row = [str(length), name, f"{speedup:.2f}", bar]
            rows.append([*row, f"{times[name] * 1e3:.0f}", f"{times['softmax'] * 1e3:.0f}"])
    title = "causal Performer: how many times as fast as scaled_dot_product_attention"
    table(title, ["tokens", "features", "× as fast", "bar", "ms", "softmax ms"], rows)


if __name__ == "__main__":
    main()
