"""`regard score`: BLEU and chrF of translations, by length, and two systems side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.option_checks import check_needed
from regard.cli.terminal import ink_of, label
from regard.errors import RegardError
from regard.translate import evaluation
from regard.translate.data.lines import lines
from regard.translate.evaluation import (
    RESAMPLES,
    TOKENIZERS,
    Bucket,
    Compared,
    Comparison,
    Differing,
    Scores,
)

_EXAMPLES = 5
_NO_BLEU = "no reference there has the four words that BLEU counts: a perfect translation has 0 too"


def score(
    hypotheses: Annotated[Path, typer.Argument(help="Translations, a line a sentence.")],
    references: Annotated[Path, typer.Argument(help="What they should have been.")],
    other: Annotated[
        Path | None, typer.Option(help="Translations of another system, to hold against these.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(help="What was translated; lengths are then those of the sources."),
    ] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Count in lower case.")] = False,
    tokenizer: Annotated[
        str, typer.Option(help=f"How BLEU cuts text: {', '.join(TOKENIZERS)}.")
    ] = "13a",
    edges: Annotated[
        str, typer.Option(help="Words at which a new bucket of lengths begins; empty for none.")
    ] = "10,20,30,40,50",
    resamples: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"With --other, draws of the bootstrap; {RESAMPLES} when not said."
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --other, how many sentences to show that both differ on most; "
            f"{_EXAMPLES} when not said.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """BLEU and chrF with their signatures, by length; with --other also significance.

    Files may be gzip. The scores are sacrebleu's. Two systems are compared by a paired bootstrap;
    its p is two-sided.
    """
    check_needed("--other", other, {"--resamples": resamples, "--examples": examples})
    files = {"hypotheses": hypotheses, "references": references, "other": other, "source": source}
    texts = _read({name: path for name, path in files.items() if path is not None})
    console = Console()
    with console.status("counting"):
        report = _report(
            texts,
            {"lower": lower, "tokenizer": cast(Any, tokenizer)},
            edges=_edges(edges),
            resamples=RESAMPLES if resamples is None else resamples,
            examples=_EXAMPLES if examples is None else examples,
        )
    if as_json:
        print(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        _show(console, report, texts, _names(hypotheses, other))


@dataclass(frozen=True)
class _Report:
    """All that is printed; `other_buckets` are those of the other system."""

    scores: Scores
    buckets: list[Bucket]
    other_buckets: list[Bucket]
    comparison: list[Comparison]
    differing: list[Differing]


def _report(
    texts: dict[str, list[str]],
    options: dict[str, Any],
    *,
    edges: Sequence[int],
    resamples: int,
    examples: int,
) -> _Report:
    said, right = texts["hypotheses"], texts["references"]
    scores = evaluation.score(said, right, **options)

    def by_length(system: str) -> list[Bucket]:
        if not edges or system not in texts:
            return []
        sources = texts.get("source")
        return evaluation.buckets(texts[system], right, sources=sources, edges=edges, **options)

    lengths = by_length("hypotheses"), by_length("other")
    if "other" not in texts:
        return _Report(scores, *lengths, [], [])
    both = said, texts["other"], right
    compared = evaluation.compare(*both, resamples=resamples, **options)
    apart = evaluation.differing(*both, most=examples, lower=options["lower"])
    return _Report(scores, *lengths, compared, apart)


def _read(files: dict[str, Path]) -> dict[str, list[str]]:
    texts = {name: [text for _, text in lines(path)] for name, path in files.items()}
    first, wanted = files["hypotheses"], len(texts["hypotheses"])
    if not wanted:
        raise RegardError(f"{first} has no lines: nothing can be scored")
    for name, path in files.items():
        if len(texts[name]) != wanted:
            raise RegardError(
                f"{first} has {wanted} lines, but {path} has {len(texts[name])}; "
                "expected as many in each"
            )
    return texts


def _edges(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise RegardError(f"--edges {text!r}, expected numbers such as 10,20,30") from error


# -- on a terminal


def _names(hypotheses: Path, other: Path | None) -> list[str]:
    """What the systems are called: their files, with folders where the names alone are the same."""
    paths = [hypotheses] if other is None else [hypotheses, other]
    short = len({path.name for path in paths}) == len(paths)
    return [label(path.name if short else str(path)) for path in paths]


def _show(
    console: Console, report: _Report, texts: dict[str, list[str]], names: Sequence[str]
) -> None:
    if report.comparison:
        console.print(_side_by_side(console, report.comparison, names))
        for measure in report.comparison:
            console.print(Text(f"{measure.name}: {measure.signature}", "dim"), soft_wrap=True)
    else:
        for one in (report.scores.bleu, report.scores.chrf):
            shown = Text.assemble(
                (f"{one.name} {one.value:.2f}", "bold"), (f"  {one.signature}", "dim")
            )
            console.print(shown, soft_wrap=True)
    if report.buckets:
        measured = "source" if "source" in texts else "reference"
        systems = [found for found in (report.buckets, report.other_buckets) if found]
        console.print(_by_length(console, systems, names, measured))
        if any(bucket.sentences and bucket.bleu is None for bucket in report.buckets):
            console.print(Text(f"- {_NO_BLEU}", "dim"), soft_wrap=True)
    for differing in report.differing:
        _show_example(console, differing, texts, names)


def _table(console: Console, title: str) -> Table:
    plain = ink_of(console) == "ascii"
    return Table(title=title, title_justify="left", box=box.ASCII if plain else box.HEAVY_HEAD)


def _by_length(
    console: Console, systems: list[list[Bucket]], names: Sequence[str], measured: str
) -> Table:
    """A row for each length that there is; with two systems, one under the other."""
    table = _table(console, f"by words of the {measured}")
    for title in ("words", "sentences", *["system"] * (len(systems) > 1), "BLEU", "chrF"):
        table.add_column(title, justify="right")
    for same_length in zip(*systems):
        for place, (bucket, name) in enumerate(zip(same_length, names)):
            if not bucket.sentences:
                continue
            lengths = ["", ""] if place else [bucket.name, str(bucket.sentences)]
            values = [f"{one.value:.2f}" if one else "-" for one in (bucket.bleu, bucket.chrf)]
            table.add_row(*lengths, *[Text(name)] * (len(systems) > 1), *values)
    return table


def _side_by_side(console: Console, measures: list[Comparison], names: Sequence[str]) -> Table:
    table = _table(console, "two systems, with 95 % intervals")
    table.add_column("")
    for measure in measures:
        table.add_column(measure.name, justify="right", no_wrap=True)
    systems = [[measure.first for measure in measures], [measure.second for measure in measures]]
    for name, found in zip(names, systems):
        table.add_row(Text(name), *(_with_interval(one) for one in found))
    table.add_row("difference", *(f"{measure.difference:+.2f}" for measure in measures))
    at_most = "<=" if ink_of(console) == "ascii" else "≤"
    table.add_row("two-sided p", *(_chance(measure, at_most) for measure in measures))
    return table


def _with_interval(system: Compared) -> str:
    low, high = max(0.0, system.mean - system.interval), min(100.0, system.mean + system.interval)
    return f"{system.value:.2f} ({low:.2f} to {high:.2f})"


def _chance(measure: Comparison, at_most: str) -> str:
    """The p of a comparison; the least that so many draws can say is a bound, so rounded up."""
    if not measure.at_floor:
        return f"{measure.two_sided_p:.3f}"
    digits = 1 - math.floor(math.log10(measure.two_sided_p))  # two that count
    return f"{at_most} {math.ceil(measure.two_sided_p * 10**digits) / 10**digits:.{digits}f}"


def _show_example(
    console: Console, found: Differing, texts: dict[str, list[str]], names: Sequence[str]
) -> None:
    console.print(f"\nline {found.number + 1}: chrF {found.first:.1f} and {found.second:.1f}")
    titles = {"source": "source", "references": "reference"}
    titles |= dict(zip(("hypotheses", "other"), names))
    width = max(map(len, titles.values()))
    for name, title in titles.items():
        if name in texts:
            text = label(texts[name][found.number])
            console.print(Text.assemble((f"{title:>{width}}  ", "dim"), text), soft_wrap=True)
