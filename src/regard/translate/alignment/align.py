"""Word alignment of sentence pairs by a translator's attention, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from regard.errors import RegardError
from regard.translate.alignment.forced import Sentence, force
from regard.translate.alignment.heads import (
    AllHeads,
    Choice,
    Head,
    best_readings,
    choose,
    head_named,
    preferred_head,
)
from regard.translate.alignment.links import (
    ErrorRate,
    Gold,
    Links,
    Rule,
    error_rate,
    flipped,
    rule_named,
)
from regard.translate.alignment.matrix import Reading, check_reading
from regard.translate.alignment.symmetrise import check_symmetriser, symmetrise
from regard.translate.checkpoint import Checkpoint, load_checkpoint

ByReading = Mapping[Reading, AllHeads]  #: what the heads of a model attended to


@dataclass(frozen=True)
class Alignment:
    """Links between the words of sentence pairs, and what they were read from.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `links`            | for each pair, links (source word, target word), counted from 0      |
    | `head`             | the head of the model from source to target                          |
    | `reading`          | which of its rows belongs to a word                                  |
    | `backward_head`    | the head of the model from target to source; None without one        |
    | `backward_reading` | its reading                                                          |
    | `why`              | what the heads were chosen by, as a phrase                           |
    | `error`            | the alignment error rate; None without gold links                    |
    """

    links: list[Links]
    head: Head
    reading: Reading
    backward_head: Head | None
    backward_reading: Reading | None
    why: str
    error: ErrorRate | None


def align(
    checkpoint: Checkpoint | str | Path,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    backward: Checkpoint | str | Path | None = None,
    gold: Sequence[Gold] | None = None,
    head: Head | str | None = None,
    backward_head: Head | str | None = None,
    reading: Reading | None = None,
    rule: Rule | str | float = "mutual",
    symmetriser: str = "grow-diag",
) -> Alignment:
    """Link the words of sentences with those of their translations, as `regard align` does.

    Words are separated by spaces. Heads that are not named, and the reading, are chosen by
    the least alignment error if there are gold links, else by the agreement of both directions,
    else they are the checkpoint's preferred head (`save_preferred_head`) or, without one, the mean
    of the heads of the last layer but one in the model's own reading.

    Args:
        checkpoint: a translator from source to target, or its file.
        sources: the sentences.
        targets: their translations.
        backward: a translator from target to source; the links of both are symmetrised.
        gold: for each pair, the links that people drew: heads are chosen by them, and scored.
        head: the head to read, such as "3.cross:5", or "3.cross" for the mean of its heads.
        backward_head: the same for `backward`.
        reading: which row belongs to a word: "output" or "input".
        rule: from weights to links: "mutual", "strongest", the least weight of a link, or a
            function of weights (target, source).
        symmetriser: with `backward`, one of `SYMMETRISERS`.
    """
    to_links = rule_named(rule)
    check_symmetriser(symmetriser)
    if reading is not None:
        check_reading(reading)
    if backward is None and backward_head is not None:
        raise RegardError(f"align: backward_head is {backward_head}, but there is no backward")
    if not sources:
        raise RegardError("align: there are no sentences")
    model = _loaded(checkpoint)
    preferred = None
    if head is None and gold is None and backward is None:
        preferred = preferred_head(model.extra)
    if preferred is not None and reading is None:
        reading = preferred.reading
    forward = _by_reading(model, sources, targets, reading)
    if preferred is not None:
        forward = _only(forward, preferred.head, "the head that the checkpoint remembers,")
    if head is not None:
        forward = _only(forward, head, "head")
    other = None
    if backward is not None:
        other = _by_reading(_loaded(backward), targets, sources, reading)
    if other is not None and backward_head is not None:
        other = _only(other, backward_head, "backward_head")
    forward_reading, other_reading = best_readings(forward, other, gold, to_links)
    forward_heads = forward[forward_reading]
    other_heads = None
    if other is not None and other_reading is not None:
        other_heads = other[other_reading]
    choice = choose(forward_heads, other_heads, gold, to_links)
    why = choice.why
    if preferred is not None:
        why = "as the checkpoint remembers"
    elif head is not None and (backward is None or backward_head is not None):
        why = "as was asked"
    links = _links(forward_heads, other_heads, choice, to_links, symmetriser)
    return Alignment(
        links,
        choice.forward,
        forward_reading,
        choice.backward,
        other_reading,
        why,
        None if gold is None else error_rate(links, gold),
    )


def _loaded(checkpoint: Checkpoint | str | Path) -> Checkpoint:
    return checkpoint if isinstance(checkpoint, Checkpoint) else load_checkpoint(checkpoint)


def _by_reading(
    checkpoint: Checkpoint,
    sources: Sequence[str],
    targets: Sequence[str],
    reading: Reading | None,
) -> dict[Reading, AllHeads]:
    """What all heads attended to, by reading; without one, by every reading, the model's first."""
    attention = force(
        checkpoint.model,
        [Sentence.spaced(text, checkpoint.source) for text in sources],
        [Sentence.spaced(text, checkpoint.target) for text in targets],
    )
    readings = [checkpoint.model.reading, *get_args(Reading)] if reading is None else [reading]
    return {name: attention.heads(name) for name in dict.fromkeys(readings)}


def _only(by_reading: ByReading, head: Head | str, option: str) -> dict[Reading, AllHeads]:
    """One head alone; `option` names it in errors."""
    name = head.name if isinstance(head, Head) else head
    heads = next(iter(by_reading.values())).heads
    chosen = head_named(name, heads, option)
    return {reading: matrices.only(chosen) for reading, matrices in by_reading.items()}


def _links(
    forward: AllHeads, backward: AllHeads | None, choice: Choice, rule: Rule, symmetriser: str
) -> list[Links]:
    links = forward.links(choice.forward, rule)
    if backward is None or choice.backward is None:
        return links
    backward_links = map(flipped, backward.links(choice.backward, rule))
    return [symmetrise(*pair, symmetriser) for pair in zip(links, backward_links)]
