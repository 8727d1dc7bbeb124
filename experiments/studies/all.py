"""Runs the studies, and prints one table: figure expected, figure measured, seconds.

    python experiments/studies/all.py [NAME ...] [--full] [--keep]

By default each runs in its quick form; with --full each runs with three seeds. With --keep its
table goes to results/, its picture to docs/images, and its model, if it has one, to the package.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
from pathlib import Path
from types import ModuleType

import study
from study import Outcome

from regard.cli.packaged.studies import store

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parents[1] / "docs/images"
NAMES = sorted({path.stem for path in HERE.glob("*.py")} - {"all", "study"})


def rows(name: str, outcomes: list[Outcome], seconds: float) -> list[tuple[str, ...]]:
    """A row for each figure: study, figure, expected, measured (mean), verdict, seconds."""
    return [
        (
            "" if number else name,
            figures[0].name,
            figures[0].expectation,
            f"{statistics.mean(figure.measured for figure in figures):.4g}",
            study.verdict(figures),
            "" if number else f"{seconds:.0f}",
        )
        for number, figures in enumerate(study.by_seed(outcomes))
    ]


def keep(name: str, module: ModuleType, outcomes: list[Outcome], seconds: float) -> None:
    """What stays of a run: its table, its picture and its model."""
    report = study.report(module.__doc__ or "", outcomes, seconds)
    (HERE / "results" / f"{name}.txt").write_text(report + "\n", encoding="utf-8")
    study.save(outcomes[0], module.draw, IMAGES / f"study-{name}.png")
    if outcomes[0].model is not None:
        store.save(name, outcomes[0].model)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"from {', '.join(NAMES)}")
    parser.add_argument("--full", action="store_true", help="three seeds, and longer trainings")
    parser.add_argument("--keep", action="store_true", help="keep results, pictures and models")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: expected {', '.join(NAMES)}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    table = [("study", "figure", "expected", "measured", "holds", "seconds")]
    total, measured = 0.0, []
    for name in options.names or NAMES:
        module = importlib.import_module(name)
        outcomes, seconds = study.run(module.study, not options.full)
        total += seconds
        measured += outcomes
        table += rows(name, outcomes, seconds)
        if options.keep:
            keep(name, module, outcomes, seconds)
        print(f"{name}: {seconds:.0f} s", flush=True)
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"{total:.0f} s of processor")
    study.check(measured)


if __name__ == "__main__":
    main()
