"""Every model of the registry on Multi30k English to French: one training each, one table.

    REGARD_DATA=… python experiments/translate/variants.py [--workers 2] [--only dot,qkv]

Each training has one process and one thread; `--workers` of them run at once. Resumable: what is
finished is not trained again, what was cut off (by --minutes, Ctrl-C or a loss of power) goes on.
A model with two names is trained once, under the first of the registry, and has a row for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.translate.checkpoint import load_checkpoint
from regard.translate.config import Config
from regard.translate.models.build import BUILDERS, names
from regard.translate.training import Validation, Watcher, train

HERE = Path(__file__).parent
#: What a model needs besides its name: a Transformer of about the others' size and speed.
SETTINGS = {
    "transformer": [
        "model.embedding=256",
        "model.feed_forward=512",
        "model.layers=2",
        "model.tie=target",
        "training.optimiser.rate=1e-3",
        "training.schedule.warmup=400",
    ]
}
COLUMNS = {
    "parameters": "{:,.0f}",
    "minutes": "{:.1f}",
    "steps": "{:.0f}",
    "ended": "{}",
    "valid BLEU": "{:.2f}",
    "test BLEU": "{:.2f}",
    "test chrF": "{:.2f}",
    "test BLEU of words": "{:.2f}",
}
Result = dict[str, float | str]


class Lines(Watcher):
    """One line a look."""

    def __init__(self, name: str) -> None:
        self.name = name

    def validated(self, step: int, found: Validation, best: bool) -> None:
        said = f"{self.name}: step {step}, validation loss {found.loss:.4f}"
        print(said, file=sys.stderr, flush=True)


def train_one(name: str, runs: Path, minutes: float) -> None:
    """Train one model here, or go on with it, and write down what came of it."""
    torch.set_num_threads(1)
    settings = [f"model.name={name}", *SETTINGS.get(name, [])]
    config = Config.from_file(HERE / "multi30k-en-fr.toml", settings)
    trained = train(config, runs / name, resume=True, minutes=minutes, watcher=Lines(name))
    if trained.ending == "asked":
        raise SystemExit("stopped; the same command goes on")
    model = load_checkpoint(trained.folder.best).model
    test = trained.scores["average", "test"]
    result: Result = {
        "parameters": sum(one.numel() for one in model.parameters()),
        "minutes": trained.seconds / 60,
        "steps": trained.step,
        "ended": trained.ending,
        "valid BLEU": trained.scores["average", "valid"].bleu.value,
        "test BLEU": test.bleu.value,
        "test chrF": test.chrf.value,
        "test BLEU of words": test.words_bleu.value,
    }
    (runs / name / "result.json").write_text(json.dumps(result, indent=1) + "\n")


def trained_as(name: str) -> str:
    """The first name of the same model: the one that is trained."""
    return next(other for other in names() if BUILDERS[other] is BUILDERS[name])


def result_of(name: str, runs: Path) -> Result | None:
    """What came of a training; None where there is nothing yet."""
    path = runs / trained_as(name) / "result.json"
    found: Result | None = json.loads(path.read_text()) if path.exists() else None
    return found


def finished(name: str, runs: Path) -> bool:
    """Whether a training came to the end of its schedule."""
    return (result_of(name, runs) or {"ended": "not yet"})["ended"] in ("finished", "no better")


def train_all(waiting: list[str], workers: int, arguments: Sequence[str]) -> None:
    """Train each in a process of its own, so many at once; the first that fails ends all."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                command = [sys.executable, __file__, "--train", waiting.pop(0), *arguments]
                running.append(subprocess.Popen(command))
            time.sleep(0.5)
            for process in [one for one in running if one.poll() is not None]:
                running.remove(process)
                if process.returncode:
                    raise SystemExit(process.returncode)
    finally:
        for process in running:  # each saves where it is
            process.terminate()
        for process in running:
            process.wait()


def table(results: dict[str, Result]) -> str:
    """The results as Markdown."""
    lines = [f"| model | {' | '.join(COLUMNS)} |", "|---" + "|---:" * len(COLUMNS) + "|"]
    for name, found in results.items():
        cells = [shape.format(found[column]) for column, shape in COLUMNS.items()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="at most, of each training")
    parser.add_argument("--workers", type=int, default=1, help="trainings at once")
    parser.add_argument("--only", default=",".join(names()))
    parser.add_argument("--runs", type=Path, default=HERE / "runs" / "variants")
    parser.add_argument("--train", help=argparse.SUPPRESS)  # one of them, in this process
    options = parser.parse_args()
    if options.train:
        train_one(options.train, options.runs, options.minutes)
        return
    chosen = options.only.split(",")
    unknown = ", ".join(name for name in chosen if name not in BUILDERS)
    if unknown:
        parser.error(f"--only has {unknown}, expected some of {', '.join(names())}")
    once = dict.fromkeys(trained_as(name) for name in chosen)
    waiting = [name for name in once if not finished(name, options.runs)]
    shared = ["--runs", str(options.runs), "--minutes", str(options.minutes)]
    train_all(waiting, options.workers, shared)
    found = {name: result_of(name, options.runs) for name in chosen}
    print(table({name: one for name, one in found.items() if one is not None}))


if __name__ == "__main__":
    main()
