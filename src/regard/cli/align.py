"""`regard align`: word links between sentences and their translations, and their error rate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.alignment_files import check_gold, read_gold, read_scored_links, sentence_pairs
from regard.cli.option_checks import check_needed
from regard.cli.threads import use_free_cores
from regard.cli.translation_output import no_attention
from regard.cli.unknown_words import warn_of_unknown_language
from regard.errors import RegardError
from regard.files import check_folder
from regard.translate.alignment import (
    SYMMETRISERS,
    Alignment,
    Links,
    error_rate,
    save_preferred_head,
    write_links,
    write_pharaoh,
)
from regard.translate.alignment import align as align_texts
from regard.translate.alignment.links import rule_named
from regard.translate.alignment.matrix import check_reading
from regard.translate.checkpoint import Checkpoint, load_checkpoint
from regard.translate.shipped import is_shipped


def align(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(help="A checkpoint from source to target, or english-french."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Source sentences, one per line, words separated by spaces.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, likewise.")] = None,
    backward: Annotated[
        Path | None, typer.Option(help="A checkpoint of the other direction, target to source.")
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
            help="Whose attention counts as a word's: output, the step that predicts the word, or "
            "input, the next step, which reads it. Default: chosen by --gold or --backward, else "
            "the model's own (input for Transformers)."
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="From weights to links: strongest, mutual, or a threshold such as 0.3."),
    ] = "strongest",
    symmetriser: Annotated[
        str | None,
        typer.Option(
            "--symmetrise",
            help=f"With --backward: {', '.join(SYMMETRISERS)} (default: grow-diag).",
        ),
    ] = None,
    links: Annotated[
        Path | None, typer.Option(help="Score the links in this file (0-0 1-2 …), make none.")
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(help="Gold links: 1-1 is sure, 1p1 possible.")
    ] = None,
    first: Annotated[int, typer.Option(help="Number of the first word in links: 0 or 1.")] = 0,
    gold_first: Annotated[
        int | None, typer.Option(help="Number of the first word in --gold (default: 0).")
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

    Which head is read: with --gold, the one with the lowest alignment error rate, which is printed;
    with --backward alone, the two (one per model) that agree most; else the model's usual one.
    --reading is chosen in the same way. Standard error reports the head, and a large share of
    unknown words.

    `regard align --links FILE --gold FILE` scores existing links.
    """
    if links is not None:
        model_options: dict[str, Any] = {
            "--source": source,
            "--target": target,
            "--backward": backward,
            "--head": head,
            "--backward-head": backward_head,
            "--reading": reading,
            "--rule": None if rule == "strongest" else rule,
            "--symmetrise": symmetriser,
            "--remember": remember or None,
            "--out": out,
        }
        _score(links, gold, checkpoint, (first, gold_first or 0), model_options)
        return
    if checkpoint is None or source is None or target is None:
        raise RegardError("align needs a checkpoint, --source and --target (or --links and --gold)")
    if symmetriser not in (None, *SYMMETRISERS):
        raise RegardError(f"--symmetrise {symmetriser}, expected one of {', '.join(SYMMETRISERS)}")
    backward_options = {"--symmetrise": symmetriser, "--backward-head": backward_head}
    check_needed("--backward", backward, backward_options)
    check_needed("--gold", gold, {"--gold-first": gold_first})
    if out is not None:
        check_folder(out)
    if remember:
        _check_own(checkpoint, backward)
    use_free_cores()
    pairs = sentence_pairs(source, target)
    gold_links = None
    if gold is not None:
        gold_links = read_gold(gold, gold_first or 0)
        check_gold(gold_links, pairs, (gold, source, target), gold_first or 0)
    rule_named(rule)
    if reading is not None:
        check_reading(reading)
    sides = [(source, [pair.source for pair in pairs]), (target, [pair.target for pair in pairs])]
    alignment = align_texts(
        _load(checkpoint, sides),
        sides[0][1],
        sides[1][1],
        backward=None if backward is None else _load(backward, sides[::-1]),
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


def _load(path: Path, sides: list[tuple[Path, list[str]]]) -> Checkpoint:
    """A model with attention; a warning if it does not know the words of the files."""
    checkpoint = load_checkpoint(path)
    (source, sources), (target, targets) = sides
    warn_of_unknown_language(
        path, [(source, sources, checkpoint.source), (target, targets, checkpoint.target)]
    )
    if not checkpoint.model.sites:
        raise RegardError(f"{path}: {no_attention(checkpoint)}, so nothing to align by")
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
