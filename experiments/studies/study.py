"""What every study shares: its options, its table, its picture, and the check of its figures.

A study is a module with a docstring, `study(quick, seed)`, which trains and gives an `Outcome`, and
`draw(outcome, figure)`. `python experiments/studies/NAME.py [--quick] [--picture FILE]` prints its
table, and fails where a figure that it asserts is not within the tolerance of what was expected.
A verdict in brackets is of a figure that is not asserted. `all.py` runs all studies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

SEEDS = 3  #: of a full run


@dataclass(frozen=True)
class Figure:
    """A number that a study measured, beside the one that theory or a paper gives."""

    name: str
    expected: float
    measured: float
    tolerance: float  #: by how much they may differ
    source: str  #: where the expected number comes from
    relation: Literal["equal", "at least", "at most"] = "equal"
    asserted: bool = True  #: False: a claim that may fail in so small a setting, shown all the same

    @property
    def holds(self) -> bool:
        above = self.measured - self.expected
        return {
            "equal": abs(above) <= self.tolerance,
            "at least": above >= -self.tolerance,
            "at most": above <= self.tolerance,
        }[self.relation]

    @property
    def expectation(self) -> str:
        """The expected number in words: ≥ and ≤ where it is a bound."""
        sign = {"equal": "", "at least": "≥ ", "at most": "≤ "}[self.relation]
        return f"{sign}{self.expected:.4g}"


@dataclass(frozen=True)
class Outcome:
    """What one run of a study found: its figures, what its picture is drawn from, its model."""

    figures: list[Figure]
    shown: Any
    model: nn.Module | None = None  #: kept in the package, for `regard look --model study:NAME`


Study = Callable[[bool, int], Outcome]


def by_seed(outcomes: Sequence[Outcome]) -> list[tuple[Figure, ...]]:
    """For each figure, what the seeds measured."""
    return list(zip(*(outcome.figures for outcome in outcomes), strict=True))


def table(outcomes: list[Outcome]) -> str:
    """A row for each figure: expected, measured over the seeds, tolerance, verdict, source."""
    rows = [("figure", "expected", "measured", "spread", "tolerance", "holds", "from")]
    for figures in by_seed(outcomes):
        measured = [figure.measured for figure in figures]
        spread = f"{max(measured) - min(measured):.2g}" if len(measured) > 1 else ""
        first = figures[0]
        rows.append(
            (
                first.name,
                first.expectation,
                f"{statistics.mean(measured):.4g}",
                spread,
                f"{first.tolerance:.2g}",
                verdict(figures),
                first.source,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = []
    for name, *numbers, source in rows:
        cells = [name.ljust(widths[0])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[1:])]
        lines.append("  ".join([*cells, source]).rstrip())
    return "\n".join(lines)


def verdict(figures: Sequence[Figure]) -> str:
    """Whether a figure holds, or in how many seeds; in brackets if it is not asserted."""
    count = sum(figure.holds for figure in figures)
    words = {len(figures): "yes", 0: "no"}.get(count, f"{count} of {len(figures)}")
    return words if figures[0].asserted else f"({words})"


def check(outcomes: list[Outcome]) -> None:
    """Raise where an asserted figure of any seed is off, with all that are."""
    off = [
        f"{figure.name}: {figure.measured:.4g}, expected {figure.expectation} ± "
        f"{figure.tolerance:.2g} ({figure.source})"
        for outcome in outcomes
        for figure in outcome.figures
        if figure.asserted and not figure.holds
    ]
    if off:
        raise AssertionError("\n".join(off))


def run(study: Study, quick: bool) -> tuple[list[Outcome], float]:
    """The outcome of each seed, and the seconds of processor it took."""
    torch.set_num_threads(1)
    began = time.process_time()
    outcomes = [study(quick, seed) for seed in range(1 if quick else SEEDS)]
    return outcomes, time.process_time() - began


def report(doc: str, outcomes: list[Outcome], seconds: float) -> str:
    """What a study prints, and what results/ keeps."""
    seeds = "1 seed" if len(outcomes) == 1 else f"{len(outcomes)} seeds"
    return f"{doc.splitlines()[0]}\n{table(outcomes)}\n{seeds}, {seconds:.0f} s of processor"


def main(doc: str, study: Study, draw: Callable[[Outcome, Any], None]) -> None:
    """Run a study as its options say, print its table, and check it."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, at most 45 seconds")
    parser.add_argument("--picture", type=Path, help="draw the picture into this file")
    options = parser.parse_args()
    outcomes, seconds = run(study, options.quick)
    print(report(doc, outcomes, seconds))
    if options.picture is not None:
        save(outcomes[0], draw, options.picture)
    check(outcomes)


def save(outcome: Outcome, draw: Callable[[Outcome, Any], None], path: Path) -> None:
    """The picture of an outcome, as wide as the text of a paper."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = pyplot.figure(figsize=(6.8, 2.6), layout="constrained")
        draw(outcome, figure)
        figure.savefig(path, dpi=150)
        pyplot.close(figure)


def signed_map(
    figure: Any, axis: Any, values: Tensor, most: float | None = None, place: str = "right"
) -> None:
    """A matrix in blue and red, with a dash on negative cells, which tells them apart in grey.

    Colours reach as far as its largest number, or as `most`. A figure gets a bar of them at the
    side that `place` names.
    """
    most = values.abs().max().item() if most is None else most
    image = axis.imshow(values.numpy(), cmap="RdBu_r", vmin=-most, vmax=most)
    size = 60 / max(values.shape)
    negative, dark = values < -0.1 * most, values < -0.5 * most
    for cells, ink in ((negative & ~dark, "black"), (dark, "white")):
        rows, columns = torch.nonzero(cells, as_tuple=True)
        axis.plot(columns, rows, "_", color=ink, markersize=size, markeredgewidth=size / 6)
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    if figure is not None:
        figure.colorbar(image, ax=axis, location=place, shrink=0.8)
