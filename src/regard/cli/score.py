"""`regard score`: BLEU and chrF of translations, by length, and two systems compared."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.cli.option_checks import check_choice, check_needed
from regard.cli.terminal import ink_of, label
from regard.errors import RegardError
from regard.translate.data.lines import lines
from regard.translate.evaluation import (
    TOKENIZERS,
    Bucket,
    Comparison,
    Evaluation,
    EvaluationOptions,
    SentenceDifference,
    SystemScore,
    evaluate,
)

_DEFAULTS = EvaluationOptions()
_NO_BLEU = "no reference there has the four words that BLEU counts: a perfect translation has 0 too"


def score(
    hypotheses: Annotated[Path, typer.Argument(help="Translations, one per line.")],
    references: Annotated[Path, typer.Argument(help="Reference translations, one per line.")],
    other: Annotated[
        Path | None,
        typer.Option(help="Translations of a second system, to compare with the first."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Source sentences, to group scores by their lengths (default: references)."
        ),
    ] = None,
    lower: Annotated[bool, typer.Option("--lower", help="Ignore case.")] = _DEFAULTS.lower,
    tokenizer: Annotated[
        str, typer.Option(metavar="|".join(TOKENIZERS), help="Tokeniser of BLEU.")
    ] = _DEFAULTS.tokenizer,
    edges: Annotated[
        str,
        typer.Option(help="Lengths, in words, at which a new group begins; empty for no groups."),
    ] = ",".join(map(str, _DEFAULTS.edges)),
    resamples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"With --other, bootstrap resamples (default: {_DEFAULTS.resamples}).",
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --other, number of sentences to show, by difference in chrF (default: "
            f"{_DEFAULTS.examples}).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score translations with BLEU and chrF; with --other, test whether two systems differ.

    Scores and signatures are sacrebleu's. The test is a two-sided paired bootstrap. Files may be
    gzipped.
    """
    check_choice("--tokenizer", tokenizer, TOKENIZERS)
    check_needed("--other", other, {"--resamples": resamples, "--examples": examples})
    files = {"hypotheses": hypotheses, "references": references, "other": other, "source": source}
    texts = _read({name: path for name, path in files.items() if path is not None})
    console = Console()
    with console.status("counting"):
        options = EvaluationOptions(
            lower=lower,
            tokenizer=tokenizer,  # type: ignore[arg-type]
            edges=_edges(edges),
            resamples=_DEFAULTS.resamples if resamples is None else resamples,
            examples=_DEFAULTS.examples if examples is None else examples,
        )
        report = evaluate(
            texts["hypotheses"],
            texts["references"],
            options,
            other=texts.get("other"),
            sources=texts.get("source"),
        )
    if as_json:
        print(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        _show(console, report, texts, _names(hypotheses, other))


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


def _edges(text: str) -> tuple[int, ...]:
    try:
        edges = tuple(int(edge) for edge in text.split(",") if edge.strip())
    except ValueError:
        edges = (0,)
    if list(edges) != sorted({*edges}) or min(edges, default=1) < 1:
        raise RegardError(f"--edges {text!r}, expected rising numbers above 0, such as 10,20,30")
    return edges


# -- on a terminal


def _names(hypotheses: Path, other: Path | None) -> list[str]:
    """Names of the systems: their files, with folders if the names alone are equal."""
    paths = [hypotheses] if other is None else [hypotheses, other]
    short = len({path.name for path in paths}) == len(paths)
    return [label(path.name if short else str(path)) for path in paths]


def _show(
    console: Console, report: Evaluation, texts: dict[str, list[str]], names: Sequence[str]
) -> None:
    if report.comparison:
        console.print(_side_by_side(console, report.comparison, names))
        for measure in report.comparison:
            console.print(Text(f"{measure.name}: {measure.signature}", "dim"), soft_wrap=True)
    else:
        for figure in (report.scores.bleu, report.scores.chrf):
            name, signature = f"{figure.name} {figure.value:.2f}", f"  {figure.signature}"
            console.print(Text.assemble((name, "bold"), (signature, "dim")), soft_wrap=True)
    if report.buckets:
        measured = "source" if "source" in texts else "reference"
        systems = [system for system in (report.buckets, report.other_buckets) if system]
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
    """A row per bucket; with two systems, one below the other."""
    table = _table(console, f"by words of the {measured}")
    for title in ("words", "sentences", *["system"] * (len(systems) > 1), "BLEU", "chrF"):
        table.add_column(title, justify="right")
    for same_length in zip(*systems):
        for number, (bucket, name) in enumerate(zip(same_length, names)):
            if not bucket.sentences:
                continue
            lengths = ["", ""] if number else [bucket.name, str(bucket.sentences)]
            scores = (bucket.bleu, bucket.chrf)
            values = [f"{figure.value:.2f}" if figure else "-" for figure in scores]
            table.add_row(*lengths, *[Text(name)] * (len(systems) > 1), *values)
    return table


def _side_by_side(console: Console, measures: list[Comparison], names: Sequence[str]) -> Table:
    table = _table(console, "two systems, with 95 % intervals")
    table.add_column("")
    for measure in measures:
        table.add_column(measure.name, justify="right", no_wrap=True)
    systems = [[measure.first for measure in measures], [measure.second for measure in measures]]
    for name, scores in zip(names, systems):
        table.add_row(Text(name), *map(_with_interval, scores))
    table.add_row("difference", *(f"{measure.difference:+.2f}" for measure in measures))
    at_most = "<=" if ink_of(console) == "ascii" else "≤"
    table.add_row("two-sided p", *(_chance(measure, at_most) for measure in measures))
    return table


def _with_interval(system: SystemScore) -> str:
    low, high = max(0.0, system.mean - system.interval), min(100.0, system.mean + system.interval)
    return f"{system.value:.2f} ({low:.2f} to {high:.2f})"


def _chance(measure: Comparison, at_most: str) -> str:
    """The p of a comparison; the least that the resamples can show is a bound, so rounded up."""
    if not measure.at_floor:
        return f"{measure.two_sided_p:.3f}"
    digits = 1 - math.floor(math.log10(measure.two_sided_p))  # two that count
    return f"{at_most} {math.ceil(measure.two_sided_p * 10**digits) / 10**digits:.{digits}f}"


def _show_example(
    console: Console,
    difference: SentenceDifference,
    texts: dict[str, list[str]],
    names: Sequence[str],
) -> None:
    chrf = f"{difference.first:.1f} and {difference.second:.1f}"
    console.print(f"\nline {difference.number + 1}: chrF {chrf}")
    titles = {"source": "source", "references": "reference"}
    titles |= dict(zip(("hypotheses", "other"), names))
    width = max(map(len, titles.values()))
    for name, title in titles.items():
        if name in texts:
            text = label(texts[name][difference.number])
            console.print(Text.assemble((f"{title:>{width}}  ", "dim"), text), soft_wrap=True)
