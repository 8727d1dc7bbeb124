"""Alignment error on the 447 Hansards sentences, of models of both directions, reading by reading.

    REGARD_DATA=... python experiments/translate/align_hansards.py FORWARD BACKWARD [--rule RULE]
        [--part development]

FORWARD translates English to French, BACKWARD French to English; both were trained on the text that
`hansards.py` writes. The models are made to say the gold sentences. For each reading (a word's row
is the step that says it, or the step that is given it) heads are chosen in two ways: by agreement
of both directions, which sees no gold link, and by the least error against gold. There is a table
for each rule that makes links of weights: of every target word the strongest; of those, the mutual
ones alone, which are the strongest of their source word too. What is to be decided, such as a rule,
is decided on the development part, every third sentence from the first on; the others are the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from hansards import data_folder, gold_text
from rich.console import Console
from rich.table import Table

from regard.translate.alignment import (
    SYMMETRISERS,
    AllHeads,
    Choice,
    ForcedAttention,
    Gold,
    Links,
    Reading,
    Sentence,
    above,
    choose,
    error_rate,
    flipped,
    force,
    mutual,
    read_links,
    strongest,
    symmetrise,
)
from regard.translate.alignment.links import Rule
from regard.translate.checkpoint import load_checkpoint

RULES: dict[str, Rule] = {"strongest": strongest, "mutual": mutual}
PARTS = ("all", "development", "test")


def part_of(sentences: Sequence[Any], part: str) -> list[Any]:
    """Those of a part: every third is development, the others are the test.

    >>> part_of("abcdefg", "development"), part_of("abcdefg", "test")
    (['a', 'd', 'g'], ['b', 'c', 'e', 'f'])
    """
    return [
        sentence
        for number, sentence in enumerate(sentences)
        if part == "all" or (number % 3 == 0) == (part == "development")
    ]


def forced(path: Path, pairs: Sequence[tuple[str, str]]) -> ForcedAttention:
    """What a model attends to when it is made to say the second of each pair."""
    loaded = load_checkpoint(path)
    sources = [Sentence.spaced(source, loaded.source) for source, _ in pairs]
    targets = [Sentence.spaced(target, loaded.target) for _, target in pairs]
    return force(loaded.model, sources, targets)


def links_by_way(
    there: AllHeads, back: AllHeads, choice: Choice, rule: Rule
) -> Iterator[tuple[str, list[Links]]]:
    """The links of each direction, and of every way to make them one."""
    assert choice.backward is not None
    ahead = there.links(choice.forward, rule)
    behind = [flipped(links) for links in back.links(choice.backward, rule)]
    yield f"English to French: {choice.forward}", ahead
    yield f"French to English: {choice.backward}", behind
    for how in SYMMETRISERS:
        yield how, [symmetrise(one, other, how) for one, other in zip(ahead, behind)]


def table(
    forward: ForcedAttention, backward: ForcedAttention, gold: Sequence[Gold], rule: Rule, name: str
) -> Table:
    """Error, precision and recall, a line for each reading, choice and way."""
    made = Table(title=f"{len(gold)} Hansards sentences, rule {name}")
    for column in ("reading", "heads chosen by", "links"):
        made.add_column(column)
    for column in ("error %", "precision %", "recall %"):
        made.add_column(column, justify="right")
    for reading in get_args(Reading):
        there, back = forward.heads(reading), backward.heads(reading)
        for drawn in (None, gold):
            choice = choose(there, back, drawn, rule)
            for way, links in links_by_way(there, back, choice, rule):
                found = error_rate(links, gold)
                figures = (found.error, found.precision, found.recall)
                made.add_row(
                    reading,
                    choice.why,
                    way,
                    *(f"{100 * figure:.2f}" for figure in figures),
                    end_section=way == list(SYMMETRISERS)[-1],
                )
    return made


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forward", type=Path, help="checkpoint, English to French")
    parser.add_argument("backward", type=Path, help="checkpoint, French to English")
    parser.add_argument(
        "--rule", nargs="+", default=list(RULES), help="strongest, mutual, or least weights (0.3)"
    )
    parser.add_argument("--part", choices=PARTS, default="all", help="of the sentences")
    options = parser.parse_args()
    rules = [RULES[name] if name in RULES else above(float(name)) for name in options.rule]
    folder = data_folder()
    pairs = part_of(gold_text(folder), options.part)
    gold = part_of(read_links(folder / "enfr.gold", first=1), options.part)
    forward = forced(options.forward, pairs)
    backward = forced(options.backward, [(target, source) for source, target in pairs])
    for name, rule in zip(options.rule, rules):
        Console(width=140).print(table(forward, backward, gold, rule, name))


if __name__ == "__main__":
    main()
