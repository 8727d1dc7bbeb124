"""What local self-attention costs beside the same attention by `F.unfold`, written by hand.

One image of 64 channels, 64 × 64, 8 heads, 7 × 7, one torch thread: forward alone, and forward with
backward. Time is processor time, in turn in one process. Memory is the growth of the process at its
peak, each in a process of its own, after a call on a small image.

    python benchmarks/local_self_attention.py [--quick]
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import interleaved, table
from torch import Tensor

from regard.vision import LocalSelfAttention

CHANNELS, HEADS, SIDE, SIZE = 64, 8, 64, 7
BARS = {"time": 1.5, "memory": 0.25}


def unfolded(attn: LocalSelfAttention, image: Tensor) -> Tensor:
    """The same output: keys and values of all neighbourhoods unfolded at once."""
    batch, _, height, width = image.shape
    query = attn.to_query(image).view(batch, HEADS, -1, 1, height * width)
    key, value = (
        F.unfold(project(image), SIZE, padding=SIZE // 2).view(
            batch, HEADS, -1, SIZE**2, height * width
        )
        for project in (attn.to_key, attn.to_value)
    )
    row = attn.row[:, :, None].expand(-1, SIZE, SIZE, -1)
    column = attn.column[:, None].expand(-1, SIZE, SIZE, -1)
    relative = torch.cat([row, column], -1).flatten(1, 2)  # (head, offset, width)
    scores = (query * key).sum(2) + relative @ query[:, :, :, 0]
    inside = F.unfold(torch.ones(1, 1, height, width), SIZE, padding=SIZE // 2) > 0
    weights = scores.masked_fill(~inside.view(SIZE**2, -1), -torch.inf).softmax(2)
    return (weights[:, :, None] * value).sum(3).view(batch, -1, height, width)


def call(name: str, training: bool, side: int = SIDE) -> None:
    torch.manual_seed(0)
    attn, image = (
        LocalSelfAttention(CHANNELS, HEADS, size=SIZE),
        torch.randn(1, CHANNELS, side, side),
    )
    run = (lambda: attn(image).output) if name == "regard" else (lambda: unfolded(attn, image))
    if training:
        run().square().sum().backward()
    else:
        with torch.no_grad():
            run()


def peak(name: str, training: bool) -> float:
    """Megabytes by which a process of its own grows."""
    command = [sys.executable, __file__, "--child", name, str(int(training))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(name: str, training: bool) -> None:
    call(name, training, side=8)
    before = _highest()
    call(name, training)
    print(_highest() - before)


def _highest() -> float:
    """Megabytes at the peak of this process; `getrusage` would count the parent's as well."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) / 1024


@torch.no_grad()
def largest_difference() -> float:
    attn, image = LocalSelfAttention(CHANNELS, HEADS, size=SIZE), torch.randn(1, CHANNELS, 16, 16)
    return float((attn(image).output - unfolded(attn, image)).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        child(options.child[0], options.child[1] == "1")
        return
    print(f"largest difference of the outputs: {largest_difference():.1e}")
    rows = []
    for training in (False, True):
        names = ("regard", "unfold")
        calls = {name: functools.partial(call, name, training) for name in names}
        times = interleaved(calls, 3 if options.quick else 10)
        peaks = {name: peak(name, training) for name in names}
        for what, unit, numbers in (("time", 1e3, times), ("memory", 1.0, peaks)):
            ratio = numbers["regard"] / numbers["unfold"]
            cells = [f"{unit * numbers[name]:.0f}" for name in names]
            measure = f"{what}, {'ms' if what == 'time' else 'MB'}"
            label = "forward and backward" if training else "forward"
            rows.append([label, measure, *cells, f"{ratio:.2f}", f"{BARS[what]}"])
    title = f"local self-attention, {CHANNELS} channels, {SIDE} × {SIDE}, {SIZE} × {SIZE}"
    table(title, ["", "", "regard", "unfold", "ratio", "bar"], rows)


if __name__ == "__main__":
    main()
