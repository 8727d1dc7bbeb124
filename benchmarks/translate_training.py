"""How fast a translator trains: regard beside JoeyNMT 2.3.0 and Eole 0.6.4, on the same sentences.

Target tokens (padding not counted) per second of processor time of the training updates, one
thread, start-up left out. Multi30k, English to French, words, two vocabularies of 10,000, batches
of 64 sentences, Adam, gradients clipped, the same dropout. Every system keeps the batching and the
loop it comes with; each run is a process of its own, and the systems take turns.

- recurrent: a bidirectional GRU of 500, additive attention, embeddings of 300. Regard and JoeyNMT
  have 500 features a direction; Eole divides its 500 by two directions, and allows nothing else. A
  second row of regard has 250 a direction too.
- Transformer: 4 layers of width 256, 4 heads, feed-forward parts of 1024.

    benchmarks/translate_rivals/setup.sh      # once: environments for the two
    python benchmarks/translate_training.py [--quick] [--data FOLDER]

FOLDER, or the environment variable REGARD_DATA, holds `multi30k/train.en.gz` and the others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from timing import table

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).parent / "translate_rivals"))
from cpu_probe import restart_where_needed
from meter import Task
from prepare import prepare

ROOT = Path(__file__).parents[1]
RIVALS = ROOT / "benchmarks/translate_rivals"
SHAPES = {
    "recurrent": {"embedding": 300, "encoder": 500, "hidden": 500},
    "transformer": {"layers": 4, "heads": 4, "hidden": 256, "feed_forward": 1024},
}
EOLE = "Eole 0.6.4"
NARROW = "regard with 250 a direction"  # as wide as Eole's encoder


@dataclass(frozen=True)
class System:
    """Who trains: `bars` says how many times as fast regard must be, by model, and `shapes` what is
    unlike the common shape."""

    name: str
    python: Path
    worker: str
    bars: dict[str, float]
    shapes: dict[str, dict[str, int]] = field(default_factory=dict)


SYSTEMS = [
    System("regard", Path(sys.executable), "regard_worker.py", {}),
    System(
        NARROW,
        Path(sys.executable),
        "regard_worker.py",
        {},
        {"recurrent": {"encoder": 250}},
    ),
    System(
        "JoeyNMT 2.3.0",
        ROOT / ".venv-joeynmt/bin/python",
        "joeynmt_worker.py",
        {"recurrent": 2.0},
    ),
    System(
        EOLE,
        ROOT / ".venv-eole/bin/python",
        "eole_worker.py",
        {"recurrent": 1.4, "transformer": 1.3},
    ),
]


@dataclass(frozen=True)
class Found:
    """What a run measured; the fields are those of `Meter.report`."""

    tokens: int
    seconds: float
    sentences: int
    places: int
    parameters: int
    memory: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def run(system: System, task: Task) -> Found:
    """One process; its last line is what it measured."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with tempfile.TemporaryDirectory() as scratch:
        told = json.dumps({**asdict(task), "scratch": scratch})
        done = subprocess.run(
            [system.python, RIVALS / system.worker, told],
            capture_output=True,
            text=True,
            env={**os.environ, **threads},
        )
    if done.returncode:
        sys.exit(f"{system.name} did not train:\n{done.stderr[-2000:]}")
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def row(system: System, runs: list[Found], ours: list[Found], model: str) -> list[str]:
    """A line of the table; the ratio is the median over rounds, in which both ran side by side."""
    rates = [found.rate for found in runs]
    ratio = statistics.median(own.rate / rate for own, rate in zip(ours, rates))
    padding = 1 - sum(found.tokens for found in runs) / sum(found.places for found in runs)
    cells = [
        system.name,
        f"{runs[0].parameters / 1e6:.2f} M",
        f"{statistics.median(rates):.0f}",
        f"{min(rates):.0f}–{max(rates):.0f}",
        f"{padding:.0%}",
        f"{max(found.memory for found in runs) / 2**20:.0f} MiB",
        f"{ratio:.2f} ×",
    ]
    if model not in system.bars:
        return [*cells, ""]
    bar = system.bars[model]
    return [*cells, f"{bar} × {'reached' if ratio >= bar else 'not reached'}"]


def compare(systems: list[System], task: dict[str, Any], rounds: int) -> None:
    """Rounds of all systems in turn, and their table."""
    model, updates = task["model"], task["updates"]
    runs: dict[str, list[Found]] = {system.name: [] for system in systems}
    for number in range(rounds):
        for system in systems:
            shape = {**task["shape"], **system.shapes.get(model, {})}
            found = run(system, replace(Task(**task, seed=number), shape=shape))
            runs[system.name].append(found)
            print(f"{model}, round {number + 1}: {system.name} {found.rate:.0f}", file=sys.stderr)
    table(
        f"{model}: target tokens per processor second, {rounds} × {updates} updates",
        ["", "parameters", "median", "all", "padding", "memory", "regard is", "bar"],
        [row(system, runs[system.name], runs["regard"], model) for system in systems],
    )
    if NARROW in runs and EOLE in runs:
        pairs = zip(runs[NARROW], runs[EOLE])
        ratio = statistics.median(own.rate / other.rate for own, other in pairs)
        print(f"{NARROW}, is {ratio:.2f} × {EOLE}, whose encoder is as wide")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few updates, once: is all there?")
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, help="3 unless told")
    parser.add_argument("--updates", type=int, help="measured in each run, 24 unless told")
    return parser.parse_args()


def main() -> None:
    told = arguments()
    if told.data is None or not (Path(told.data) / "multi30k/train.en.gz").exists():
        sys.exit(
            "translate_training: no data. Give --data FOLDER, or set REGARD_DATA, "
            f"to a folder with multi30k/train.en.gz (found {told.data})"
        )
    systems = [system for system in SYSTEMS if system.python.exists()]
    for system in SYSTEMS:
        if system not in systems:
            print(f"{system.name} is left out; benchmarks/translate_rivals/setup.sh installs it")
    print("load of the machine at the start:", *(f"{load:.1f}" for load in os.getloadavg()))
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(told.data) / "multi30k", Path(folder), 4096 if told.quick else None)
        for model in told.models:
            task = {
                "data": folder,
                "scratch": "",
                "model": model,
                "shape": SHAPES[model],
                "sentences": 64,
                "dropout": 0.1,
                "warm": 1 if told.quick else 3,
                "updates": told.updates or (2 if told.quick else 24),
            }
            taking_part = [
                system
                for system in systems
                if (system.name == "regard" or model in system.bars or not told.quick)
                and (system.name != NARROW or model in system.shapes)
            ]
            compare(taking_part, task, told.rounds or (1 if told.quick else 3))


if __name__ == "__main__":
    restart_where_needed()
    main()
