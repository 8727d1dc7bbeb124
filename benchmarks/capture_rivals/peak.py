"""Peak memory of ways to see the attention of the encoder, in a process of their own.

The process is started so that every tensor gets pages of its own from the system, which then sees
it come and go; a process that has lived otherwise would cut blocks from a heap whose size is
history.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from capture_rivals import models, ways
from capture_rivals.measure import Peak, peak

LARGE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class Asked:
    """One way, by its name in `ways.WAYS`, and the encoder it is asked about."""

    way: str
    length: int
    layers: int = 6
    width: int = 384
    repeats: int = 3


def peaks(asked: list[Asked]) -> list[Peak]:
    """In two processes at a time: memory, unlike time, does not mind company."""

    def share(cases: list[Asked]) -> list[Peak]:
        if not cases:
            return []
        command = [sys.executable, __file__, json.dumps([asdict(case) for case in cases])]
        environment = {**os.environ, **LARGE}
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("peak ")]
        return [Peak(*map(float, line.split()[1:])) for line in lines]

    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(share, (asked[::2], asked[1::2])))
    return [halves[index % 2][index // 2] for index in range(len(asked))]


def measured(asked: Asked) -> Peak:
    parts = {"layers": asked.layers, "width": asked.width}
    way = ways.WAYS[asked.way]
    fused = models.masked_lm("sdpa", asked.length, **parts)
    ours = way.package == "regard"
    eager = fused if ours else models.masked_lm("eager", asked.length, **parts)
    with torch.no_grad(), ways.quiet():
        ask = way.build(fused, eager)
        ids = models.tokens(1, asked.length)
        ask(ids)
        found = peak(lambda: ask(ids), ways.results, asked.repeats)
        way.close()
    return found


def main() -> None:
    torch.set_num_threads(1)
    for case in json.loads(sys.argv[1]):
        print("peak", *astuple(measured(Asked(**case))), flush=True)


if __name__ == "__main__":
    main()
