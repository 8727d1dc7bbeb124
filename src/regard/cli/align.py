"""`regard align`: links between the words of sentences and their translations, and their error."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from regard.cli.alignment_files import check_gold, made_links, read_gold, sentence_pairs
from regard.cli.option_checks import check_needed
from regard.cli.unknown_words import tell_strange_languages
from regard.errors import RegardError
from regard.files import check_folder
from regard.translate.alignment import (
    SYMMETRISERS,
    AllHeads,
    Choice,
    Gold,
    Head,
    Links,
    Reading,
    Sentence,
    above,
    best_readings,
    choose,
    error_rate,
    flipped,
    force,
    head_named,
    mutual,
    strongest,
    symmetrise,
    write_links,
    write_pharaoh,
)
from regard.translate.alignment.links import Rule
from regard.translate.alignment.matrix import check_reading
from regard.translate.alignment.preferred_head import preferred_head, save_preferred_head
from regard.translate.checkpoint import load_checkpoint
from regard.translate.shipped import is_shipped

_RULES = {"strongest": strongest, "mutual": mutual}


def align(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            help="A checkpoint that regard trained, source to target, or english-french."
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Sentences; their words stand between spaces.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, likewise.")] = None,
    backward: Annotated[
        Path | None, typer.Option(help="A checkpoint of the other direction, target to source.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(help="Read this head, such as 3.cross:5, or 3.cross for the mean of all."),
    ] = None,
    backward_head: Annotated[
        str | None, typer.Option(help="The same for the model of the other direction.")
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            help="Which step is a word's: output (it says it) or input (it is given it); when not "
            "said, as --gold or --backward tell, else the model's own: input for Transformers."
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(help="From weights to links: strongest, mutual, or the least weight (0.3)."),
    ] = "strongest",
    how: Annotated[
        str | None,
        typer.Option(
            "--symmetrise",
            help=f"With --backward: {', '.join(SYMMETRISERS)}; grow-diag when not said.",
        ),
    ] = None,
    links: Annotated[
        Path | None, typer.Option(help="Score these links instead of making any (0-0 1-2 …).")
    ] = None,
    gold: Annotated[
        Path | None, typer.Option(help="Links that people drew: 1-1 sure, 1p1 possible.")
    ] = None,
    first: Annotated[int, typer.Option(help="The number of a first word in links: 0 or 1.")] = 0,
    gold_first: Annotated[
        int | None, typer.Option(help="With --gold, the same in its links; 0 when not said.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where links go; else they are printed.")] = None,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember",
            help="Write the head that is read into the file of the checkpoint (of both directions, "
            "into both; into no other), so that `regard translate` shows it.",
        ),
    ] = False,
) -> None:
    """Link the words of sentences with those of their translations, by a translator's attention.

    With --gold the alignment error rate is printed, and the head is chosen that has the least;
    with --backward alone the heads of both directions are chosen that agree most; so are readings,
    where none is said. Which is read is
    told on standard error, as is the share of words that the model does not know if it is large.

    `regard align --links FILE --gold FILE` scores links that are there already.
    """
    if links is not None:
        of_a_model: dict[str, Any] = {
            "--source": source,
            "--target": target,
            "--backward": backward,
            "--head": head,
            "--backward-head": backward_head,
            "--reading": reading,
            "--rule": None if rule == "strongest" else rule,
            "--symmetrise": how,
            "--remember": remember or None,
            "--out": out,
        }
        _score(links, gold, checkpoint, (first, gold_first or 0), of_a_model)
        return
    if checkpoint is None or source is None or target is None:
        raise RegardError("align needs a checkpoint, --source and --target (or --links and --gold)")
    if how not in (None, *SYMMETRISERS):
        raise RegardError(f"--symmetrise {how}, expected one of {', '.join(SYMMETRISERS)}")
    check_needed("--backward", backward, {"--symmetrise": how, "--backward-head": backward_head})
    check_needed("--gold", gold, {"--gold-first": gold_first})
    if out is not None:
        check_folder(out)
    if remember:
        _check_own(checkpoint, backward)
    pairs = sentence_pairs(source, target)
    drawn = None
    if gold is not None:
        drawn = read_gold(gold, gold_first or 0)
        check_gold(drawn, pairs, (gold, source, target), gold_first or 0)
    chosen_rule = _rule(rule)
    if reading is not None:
        check_reading(reading)
    sides = [(source, [one.source for one in pairs]), (target, [one.target for one in pairs])]
    alone = head is None and gold is None and backward is None
    there = _Direction.of(checkpoint, sides, reading, remembers=alone)
    back = None
    if backward is not None:
        back = _Direction.of(backward, sides[::-1], reading)
    there, back = _best_read(there, back, drawn, chosen_rule, head, backward_head)
    choice = _choice(there, back, drawn, chosen_rule, head, backward_head)
    _tell(there, back, choice)
    made = _links(there, back, choice, chosen_rule, how or "grow-diag")
    _put(made, out, first)
    if remember:
        _remember(checkpoint, backward, there, back, choice)
    if drawn is not None:
        print(error_rate(made, drawn), file=sys.stderr if out is None else sys.stdout)


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
    of_a_model: dict[str, Any],
) -> None:
    """Print the error rate of links that are there."""
    if gold is None or checkpoint is not None:
        raise RegardError("--links scores a file of links: say --gold, and no checkpoint")
    said = [f"{option} {value}" for option, value in of_a_model.items() if value is not None]
    if said:
        raise RegardError(f"--links scores a file of links, so it does not go with {said[0]}")
    print(error_rate(made_links(links, firsts[0]), read_gold(gold, firsts[1])))


@dataclass(frozen=True, eq=False)
class _Direction:
    """What one model attended to."""

    readings: dict[Reading, AllHeads]
    reading: Reading
    remembered: Head | None = None

    @property
    def seen(self) -> AllHeads:
        """As it is read."""
        return self.readings[self.reading]

    @classmethod
    def of(
        cls,
        path: Path,
        texts: list[tuple[Path, list[str]]],
        reading: Any,
        *,
        remembers: bool = False,
    ) -> _Direction:
        """A model on sources and targets, each with the file they are from.

        With `remembers` it is read as its file says, where that says something. Where no reading is
        said, all are there, the model's own first.
        """
        loaded = load_checkpoint(path)
        named = preferred_head(loaded.extra) if remembers else None
        if reading is None and named is not None:
            reading = named.reading
        own = loaded.model.reading if reading is None else reading
        readings = dict.fromkeys([own, *(get_args(Reading) if reading is None else ())])
        (source, read), (target, said) = texts
        sources = [Sentence.spaced(text, loaded.source) for text in read]
        targets = [Sentence.spaced(text, loaded.target) for text in said]
        tell_strange_languages(path, [(source, sources), (target, targets)])
        if not loaded.model.sites:
            raise RegardError(
                f"{path}: the model ({loaded.config.model.name}) has no attention from target to "
                "source, so nothing to align by"
            )
        forced = force(loaded.model, sources, targets)
        found = {one: forced.heads(one) for one in readings}
        return cls(found, own, None if named is None else named.head)

    def only(self, head: str | None, option: str) -> dict[Reading, AllHeads]:
        """By reading, the head of this name alone, or all where there is none."""
        if head is None:
            return self.readings
        named = head_named(head, self.seen.heads, option)
        return {reading: seen.only(named) for reading, seen in self.readings.items()}


def _best_read(
    there: _Direction,
    back: _Direction | None,
    gold: list[Gold] | None,
    rule: Rule,
    head: str | None,
    backward_head: str | None,
) -> tuple[_Direction, _Direction | None]:
    """Both in the readings that are best, where gold or the other direction tells."""
    if not there.seen.heads:
        return there, back
    behind = None if back is None else back.only(backward_head, "--backward-head")
    one, other = best_readings(there.only(head, "--head"), behind, gold, rule)
    read = replace(there, reading=one)
    return read, replace(back, reading=other) if back is not None and other is not None else back


def _choice(
    there: _Direction,
    back: _Direction | None,
    gold: list[Gold] | None,
    rule: Rule,
    head: str | None,
    backward_head: str | None,
) -> Choice:
    """The heads that were named, and for those that were not the best ones."""
    if there.remembered is not None:
        head = there.remembered.name
        found = head_named(head, there.seen.heads, "the head that the checkpoint remembers,")
        return Choice(found, None, "as the checkpoint remembers")
    named = None if head is None else head_named(head, there.seen.heads, "--head")
    other = None
    if backward_head is not None and back is not None:
        other = head_named(backward_head, back.seen.heads, "--backward-head")
    if named is not None and (back is None or other is not None):
        return Choice(named, other, "as was asked")
    ahead = there.seen if named is None else there.seen.only(named)
    behind = None if back is None else back.seen
    if behind is not None and other is not None:
        behind = behind.only(other)
    return choose(ahead, behind, gold, rule)


def _rule(text: str) -> Rule:
    if text in _RULES:
        return _RULES[text]
    try:
        return above(float(text))
    except ValueError as error:
        raise RegardError(f"--rule {text}, expected strongest, mutual or a number") from error


def _links(
    there: _Direction, back: _Direction | None, choice: Choice, rule: Rule, how: str
) -> list[Links]:
    links = there.seen.links(choice.forward, rule)
    if back is None or choice.backward is None:
        return links
    others = back.seen.links(choice.backward, rule)
    return [symmetrise(one, flipped(other), how) for one, other in zip(links, others)]


def _tell(there: _Direction, back: _Direction | None, choice: Choice) -> None:
    """Say which head is read, apart from the links."""
    said = f"reading {choice.forward} ({there.reading})"
    if back is not None:
        said += f", and of the other direction {choice.backward} ({back.reading})"
    print(f"{said}: {choice.why}", file=sys.stderr)


def _remember(
    checkpoint: Path,
    backward: Path | None,
    there: _Direction,
    back: _Direction | None,
    choice: Choice,
) -> None:
    """Write the heads that were read into their checkpoints, and say so."""
    for path, head, seen in (
        (checkpoint, choice.forward, there),
        (backward, choice.backward, back),
    ):
        if path is not None and head is not None and seen is not None:
            save_preferred_head(path, head, seen.reading)
            print(f"remembered in {path}: {head} ({seen.reading})", file=sys.stderr)


def _put(made: list[Links], out: Path | None, first: int) -> None:
    if out is not None:
        write_links(out, made, first=first)
        return
    for links in made:
        print(write_pharaoh(links, first=first))
