"""`regard align`: word links between sentences and their translations, and their error rate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from regard.cli.alignment_files import check_gold, read_gold, read_scored_links, sentence_pairs
from regard.cli.option_checks import check_choice, check_needed
from regard.cli.translation_output import no_attention
from regard.cli.unknown_words import warn_of_unknown_language
from regard.errors import RegardError
from regard.files import check_folder
from regard.translate.alignment import (
    SYMMETRISERS,
    Alignment,
    Links,
    error_rate,
    head_named,
    heads_of,
    save_preferred_head,
    write_links,
    write_pharaoh,
)
from regard.translate.alignment import align as align_texts
from regard.translate.alignment.links import rule_named
from regard.translate.alignment.matrix import Reading
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.shipped import is_shipped


def align(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            help="A checkpoint of `regard train`, from source to target; or english-french or "
            "french-english."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source sentences, one per line, words separated by spaces.")
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Translations, one per line, words separated by spaces.")
    ] = None,
    backward: Annotated[
        Path | None,
        typer.Option(
            help="A checkpoint from target to source (such as french-english), to link in both "
            "directions."
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Head to read, such as 3.cross:5, or 3.cross for the mean of its heads."),
    ] = None,
    backward_head: Annotated[
        str | None, typer.Option(help="Head of the backward model to read.")
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            metavar="output|input",
            help="Decoding step whose attention counts as a word's: output, the step that predicts "
            "it; input, the next one, which takes it as input (default: chosen with the head).",
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            metavar="mutual|strongest|NUMBER",
            help="Which weights become links: mutual, those of pairs that are each other's "
            "largest; strongest, the largest of each target word; a number such as 0.3, all of at "
            "least that (default: mutual).",
        ),
    ] = None,
    symmetriser: Annotated[
        str | None,
        typer.Option(
            "--symmetrise",
            help=f"How the links of --backward and the forward ones are merged: "
            f"{', '.join(SYMMETRISERS)} (default: grow-diag).",
        ),
    ] = None,
    links: Annotated[
        Path | None,
        typer.Option(
            help="Score the links in this file (0-0 1-2 …) against --gold; no model is run."
        ),
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(
            help="Gold links, one line per sentence: 1-1 is a sure link, 1p1 a possible one."
        ),
    ] = None,
    first: Annotated[
        int,
        typer.Option(metavar="0|1", help="Number of a sentence's first word in --out and --links."),
    ] = 0,
    gold_first: Annotated[
        int | None,
        typer.Option(
            metavar="0|1", help="Number of a sentence's first word in --gold (default: 0)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file for links (default: standard output).")
    ] = None,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember",
            help="Store the head in the checkpoint (with --backward, in both), so that `regard "
            "translate` shows it.",
        ),
    ] = False,
) -> None:
    """Link the words of sentences with those of their translations, by a translator's attention.

    Unless --head names one, the head is chosen. With --gold: the head with the lowest alignment
    error rate, which is printed. With --backward but no --gold: the two heads, one per model, that
    agree most. Otherwise: the head that `regard translate` shows. The choice is reported on
    standard error.

    `regard align --links FILE --gold FILE` scores existing links.
    """
    check_choice("--first", first, (0, 1))
    check_choice("--gold-first", gold_first, (0, 1))
    if links is not None:
        model_options: dict[str, Any] = {
            "--source": source,
            "--target": target,
            "--backward": backward,
            "--head": head,
            "--backward-head": backward_head,
            "--reading": reading,
            "--rule": rule,
            "--symmetrise": symmetriser,
            "--remember": remember or None,
            "--out": out,
        }
        _score(links, gold, checkpoint, (first, gold_first or 0), model_options)
        return
    if checkpoint is None or source is None or target is None:
        raise RegardError("align needs a checkpoint, --source and --target (or --links and --gold)")
    check_choice("--symmetrise", symmetriser, list(SYMMETRISERS))
    check_choice("--reading", reading, get_args(Reading))
    rule = "mutual" if rule is None else rule
    rule_named(rule, "--rule")
    backward_options = {"--symmetrise": symmetriser, "--backward-head": backward_head}
    check_needed("--backward", backward, backward_options)
    check_needed("--gold", gold, {"--gold-first": gold_first})
    if out is not None:
        check_folder(out)
    if remember:
        _check_own(checkpoint, backward)
    pairs = sentence_pairs(source, target)
    gold_links = None
    if gold is not None:
        gold_links = read_gold(gold, gold_first or 0)
        check_gold(gold_links, pairs, (gold, source, target), gold_first or 0)
    sides = [(source, [pair.source for pair in pairs]), (target, [pair.target for pair in pairs])]
    translator = _load(checkpoint, sides, "--head", head)
    other = (
        None if backward is None else _load(backward, sides[::-1], "--backward-head", backward_head)
    )
    alignment = align_texts(
        translator,
        sides[0][1],
        sides[1][1],
        backward=other,
        gold=gold_links,
        head=head,
        backward_head=backward_head,
        reading=reading,  # type: ignore[arg-type]
        rule=rule,
        symmetriser=symmetriser or "grow-diag",
    )
    _report_heads(alignment)
    _write(alignment.links, out, first)
    if remember:
        _remember(checkpoint, backward, alignment)
    if alignment.error is not None:
        print(alignment.error, file=sys.stderr if out is None else sys.stdout)


def _check_own(*checkpoints: Path | None) -> None:
    """Refuse to write into the translator that ships, before any work."""
    for path in checkpoints:
        if path is not None and is_shipped(path):
            raise RegardError(f"--remember: {path} ships with regard, expected a file of your own")


def _score(
    links: Path,
    gold: Path | None,
    checkpoint: Path | None,
    firsts: tuple[int, int],
    model_options: dict[str, Any],
) -> None:
    """Print the error rate of existing links."""
    if gold is None or checkpoint is not None:
        raise RegardError("--links scores a file of links: say --gold, and no checkpoint")
    for option, value in model_options.items():
        if value is not None:
            raise RegardError(
                f"--links scores a file of links, so it does not go with {option} {value}"
            )
    print(error_rate(read_scored_links(links, firsts[0]), read_gold(gold, firsts[1])))


def _load(
    path: Path, sides: list[tuple[Path, list[str]]], option: str, head: str | None
) -> Checkpoint:
    """A model with attention, and with the head of an option if it names one; a warning if it does
    not know the words of the files."""
    checkpoint = load_checkpoint(path)
    (source, sources), (target, targets) = sides
    warn_of_unknown_language(
        path, [(source, sources, checkpoint.source), (target, targets, checkpoint.target)]
    )
    if not checkpoint.model.sites:
        raise RegardError(f"{path}: {no_attention(checkpoint)}, so nothing to align by")
    if head is not None:
        head_named(head, heads_of(checkpoint.model.sites), option)
    return checkpoint


def _report_heads(alignment: Alignment) -> None:
    """Say which heads were read, apart from the links."""
    heads = f"reading {alignment.head} ({alignment.reading})"
    if alignment.backward_head is not None:
        backward = f"{alignment.backward_head} ({alignment.backward_reading})"
        heads += f", and of the other direction {backward}"
    print(f"{heads}: {alignment.why}", file=sys.stderr)


def _remember(checkpoint: Path, backward: Path | None, alignment: Alignment) -> None:
    """Store the heads that were read in their checkpoints, and say so."""
    for path, head, reading in (
        (checkpoint, alignment.head, alignment.reading),
        (backward, alignment.backward_head, alignment.backward_reading),
    ):
        if path is not None and head is not None and reading is not None:
            save_preferred_head(path, head, reading)
            print(f"remembered in {path}: {head} ({reading})", file=sys.stderr)


def _write(sentences: list[Links], out: Path | None, first: int) -> None:
    if out is not None:
        write_links(out, sentences, first=first)
        return
    for links in sentences:
        print(write_pharaoh(links, first=first))
