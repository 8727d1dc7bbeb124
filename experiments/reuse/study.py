"""Do reuse layers help? Each against the same model without, and with as many parameters.

Every run (task, variant, seed) is written as soon as it is done, and not run again: stop it and
start it again as you like. One process a seed.

    python experiments/reuse/study.py [--seeds 0 1 2 3 4] [--workers 2] [--quick]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from models import VARIANTS, build, parameters
from tasks import NO_LABEL, TASKS, Names, TwoHop, majority

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from cpu_probe import restart_where_needed

HERE = Path(__file__).parent
STEPS = {"two_hop": 1000, "names": 800}
BATCH = {"two_hop": 64, "names": 32}
TITLES = {"two_hop": "two-hop recall", "names": "names in Python source"}


def train(task: TwoHop | Names, variant: str, seed: int, steps: int, size: int) -> dict[str, Any]:
    """One run: what is right on data not trained on, parameters, seconds."""
    torch.manual_seed(seed)
    model = build(variant, task.vocabulary, task.classes)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warm = max(1, steps // 20)
    rate = lambda step: min(1, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    data = torch.Generator().manual_seed(seed)  # the same batches for every variant
    started = time.process_time()
    for _ in range(steps):
        batch = task.batch(size, data, train=True)
        scores = model(batch.tokens, batch.keep)
        loss = F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), ignore_index=NO_LABEL)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    return {
        "accuracy": accuracy(model.eval(), task),
        "parameters": parameters(model) - model.embed.weight.numel(),
        "seconds": round(time.process_time() - started, 1),
        "steps": steps,
    }


@torch.no_grad()
def accuracy(model: torch.nn.Module, task: TwoHop | Names) -> float:
    """What is right of all that is asked, in 16 batches that are the same for everybody."""
    data, right, asked = torch.Generator().manual_seed(10_000), 0, 0
    for _ in range(16):
        batch = task.batch(64, data, train=False)
        found = model(batch.tokens, batch.keep).argmax(-1)
        some = batch.labels != NO_LABEL
        right += int((found == batch.labels)[some].sum())
        asked += int(some.sum())
    return right / asked


def one_seed(given: tuple[int, Path, bool]) -> None:
    """All runs of a seed that are not there yet."""
    seed, folder, quick = given
    torch.set_num_threads(1)
    path = folder / f"seed-{seed}.json"
    done = json.loads(path.read_text()) if path.exists() else {}
    for name, make in TASKS.items():
        missing = [variant for variant in VARIANTS if f"{name}/{variant}" not in done]
        if not missing:
            continue
        task = make(every=8) if quick and make is Names else make()
        for variant in missing:
            steps = 30 if quick else STEPS[name]
            found = train(task, variant, seed, steps, BATCH[name])
            done[f"{name}/{variant}"] = found
            path.write_text(json.dumps(done, indent=1))
            print(f"seed {seed}, {name}, {variant}: {found}", flush=True)


def gathered(folder: Path) -> dict[str, Any]:
    """All runs there are, by task and variant, and where they were made."""
    runs: dict[str, dict[str, list[Any]]] = {}
    for path in sorted(folder.glob("seed-*.json")):
        seed = int(path.stem.removeprefix("seed-"))
        for key, found in json.loads(path.read_text()).items():
            task, variant = key.split("/")
            runs.setdefault(task, {}).setdefault(variant, []).append({"seed": seed, **found})
    known = {name: round(majority(make()), 4) for name, make in TASKS.items()}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {"versions": versions, "most frequent label": known, "runs": runs}


def table(results: dict[str, Any]) -> str:
    """A Markdown table a task: mean and spread over the seeds."""
    parts = []
    for task, by_variant in results["runs"].items():
        seeds = max(len(runs) for runs in by_variant.values())
        share = results["most frequent label"][task]
        parts.append(
            f"**{TITLES[task]}**: {seeds} seeds; always the commonest label: {share:.1%}\n"
        )
        parts.append("| model | learned numbers | right, mean ± standard deviation | seeds |")
        parts.append("|---|---|---|---|")
        for variant in VARIANTS:
            runs = by_variant.get(variant)
            if not runs:
                continue
            right = [100 * run["accuracy"] for run in runs]
            spread = statistics.stdev(right) if len(right) > 1 else 0.0
            each = ", ".join(f"{value:.1f}" for value in right)
            parts.append(
                f"| {variant} | {runs[0]['parameters']:,} | "
                f"{statistics.mean(right):.1f} ± {spread:.1f} | {each} |"
            )
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--workers", type=int, default=2, help="processes at a time, one a seed")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--runs", type=Path, default=HERE / "runs", help="where runs are kept")
    options = parser.parse_args()
    restart_where_needed()
    torch.set_num_threads(1)
    folder = options.runs / "quick" if options.quick else options.runs
    folder.mkdir(parents=True, exist_ok=True)
    work = [(seed, folder, options.quick) for seed in options.seeds]
    if options.workers > 1:
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            pool.map(one_seed, work, chunksize=1)
    else:
        for one in work:
            one_seed(one)
    results = gathered(folder)
    print(table(results))
    if not options.quick:
        (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (HERE / "table.md").write_text(table(results) + "\n")


if __name__ == "__main__":
    main()
