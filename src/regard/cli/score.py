"""`regard score`: BLEU and chrF of translations, by length, and two systems side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.terminal import ink_of, label
from regard.errors import RegardError
from regard.translate import evaluation
from regard.translate.data.lines import lines
from regard.translate.evaluation import TOKENIZERS, Bucket, Comparison, Differing, Scores

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
    resamples: Annotated[int, typer.Option(help="Draws of the bootstrap.")] = 1000,
    examples: Annotated[
        int, typer.Option(help="How many sentences to show that two systems differ on most.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """BLEU and chrF with their signatures, by length; with --other also significance.

    Files may be gzip. The scores are sacrebleu's. Two systems are compared by a paired bootstrap;
    its p is two-sided.
    """
    files = {"hypotheses": hypotheses, "references": references, "other": other, "source": source}
    texts = _read({name: path for name, path in files.items() if path is not None})
    console = Console()
    with console.status("counting"):
        report = _report(
            texts,
            {"lower": lower, "tokenizer": cast(Any, tokenizer)},
            edges=_edges(edges),
            resamples=resamples,
            examples=examples,
        )
    if as_json:
        print(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        _show(console, report, texts)


@dataclass(frozen=True)
class _Report:
    """All that is printed."""

    scores: Scores
    buckets: list[Bucket]
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
    by_length = []
    if edges:
        by_length = evaluation.buckets(
            said, right, sources=texts.get("source"), edges=edges, **options
        )
    if "other" not in texts:
        return _Report(scores, by_length, [], [])
    both = said, texts["other"], right
    compared = evaluation.compare(*both, resamples=resamples, **options)
    apart = evaluation.differing(*both, most=examples, lower=options["lower"])
    return _Report(scores, by_length, compared, apart)


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


def _show(console: Console, report: _Report, texts: dict[str, list[str]]) -> None:
    for one in (report.scores.bleu, report.scores.chrf):
        shown = Text.assemble(
            (f"{one.name} {one.value:.2f}", "bold"), (f"  {one.signature}", "dim")
        )
        console.print(shown, soft_wrap=True)
    if report.buckets:
        measured = "source" if "source" in texts else "reference"
        console.print(_by_length(console, report.buckets, measured))
        if any(bucket.sentences and bucket.bleu is None for bucket in report.buckets):
            console.print(Text(f"- {_NO_BLEU}", "dim"), soft_wrap=True)
    if report.comparison:
        console.print(_side_by_side(console, report.comparison))
        for measure in report.comparison:
            console.print(Text(f"{measure.name}: {measure.signature}", "dim"), soft_wrap=True)
    for differing in report.differing:
        _show_example(console, differing, texts)


def _table(console: Console, title: str) -> Table:
    plain = ink_of(console) == "ascii"
    return Table(title=title, title_justify="left", box=box.ASCII if plain else box.HEAVY_HEAD)


def _by_length(console: Console, buckets: list[Bucket], measured: str) -> Table:
    table = _table(console, f"by words of the {measured}")
    for name in ("words", "sentences", "BLEU", "chrF"):
        table.add_column(name, justify="right")
    for bucket in buckets:
        missing = "-" if bucket.sentences else ""
        values = [f"{one.value:.2f}" if one else missing for one in (bucket.bleu, bucket.chrf)]
        table.add_row(bucket.name, str(bucket.sentences), *values)
    return table


def _side_by_side(console: Console, measures: list[Comparison]) -> Table:
    table = _table(console, "two systems, with 95 % intervals")
    for name in ("", "first", "other", "difference", "two-sided p"):
        table.add_column(name, justify="right")
    plus_minus = "+-" if ink_of(console) == "ascii" else "±"
    for measure in measures:
        systems = [
            f"{one.value:.2f} ({one.mean:.2f} {plus_minus} {one.interval:.2f})"
            for one in (measure.first, measure.second)
        ]
        chance = f"{measure.two_sided_p:.3f}"
        table.add_row(measure.name, *systems, f"{measure.difference:+.2f}", chance)
    return table


def _show_example(console: Console, found: Differing, texts: dict[str, list[str]]) -> None:
    console.print(f"\nline {found.number + 1}: chrF {found.first:.1f} and {found.second:.1f}")
    names = {"source": "source", "references": "reference", "hypotheses": "first", "other": "other"}
    for name, title in names.items():
        if name in texts:
            text = label(texts[name][found.number])
            console.print(Text.assemble((f"{title:>11}  ", "dim"), text), soft_wrap=True)
