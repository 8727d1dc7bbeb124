"""Tatoeba, English to French, split and made ready for the translator that ships.

    REGARD_DATA=... python experiments/translate/tatoeba.py experiments/translate/data/tatoeba

writes train.tsv, valid.tsv and test.tsv: 1000 distinct English sentences to validate with, 2000 to
test with, and the rest. What people type is not what these sentences are like, so the pairs to
learn from are changed, both sides alike:

- Nearly all begin with a capital and end with a mark, which people leave out: one in eight loses
  its mark, one in twelve its capital, and of those that end with an exclamation mark one in three
  has a stop.
- Few have one to three words, and people greet first: these come 64, 10 and 3 times.
- Few have more than twelve words: one in ten comes once more with another pair behind it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from regard.files import write_text
from regard.translate.config import DataConfig
from regard.translate.data import Pair
from regard.translate.data.split import hash_value
from regard.translate.training.corpus import read_data

#: What is split, and how; the translator that ships remembers it, so that it can be tested.
DATA = DataConfig(
    train=("$REGARD_DATA/tatoeba/eng-fra.tsv.gz",),
    source=1,
    target=2,
    valid_pairs=1000,
    test_pairs=2000,
    longest=40,
)

WITH_A_STOP = 3  # one in so many
WITHOUT_MARK = 8
WITHOUT_CAPITAL = 12
JOINED = 10
COPIES = {1: 64, 2: 10, 3: 3}  # how often a source of so many words comes


def with_a_stop(source: str, target: str) -> tuple[str, str]:
    """With a stop where both end with an exclamation mark."""
    if not (source.endswith("!") and target.endswith("!")):
        return source, target
    return source[:-1].rstrip() + ".", target[:-1].rstrip() + "."


def without_mark(source: str, target: str) -> tuple[str, str]:
    """Without the one stop, question or exclamation mark at the end, where both have one."""
    bare = source[:-1].rstrip(), target[:-1].rstrip()
    both_have_one = source[-1] in ".?!" and target[-1] in ".?!"
    return bare if both_have_one and all(one[-1:].isalnum() for one in bare) else (source, target)


def without_capital(source: str, target: str) -> tuple[str, str]:
    """With small first letters."""
    return source[:1].lower() + source[1:], target[:1].lower() + target[1:]


CHANGES = (
    (WITH_A_STOP, with_a_stop),
    (WITHOUT_MARK, without_mark),
    (WITHOUT_CAPITAL, without_capital),
)


def as_typed(pair: Pair, copy: int) -> tuple[str, str]:
    """The two sentences; those chosen as people in a hurry type them, each copy otherwise."""
    both = pair.source, pair.target
    for number, (one_in, change) in enumerate(CHANGES, 1):
        if _choice(pair, number, copy) % one_in == 0:
            both = change(*both)
    return both


def to_learn_from(pairs: list[Pair]) -> Iterator[tuple[str, str]]:
    """The pairs as they are typed, short ones more often, and some with another one behind them."""
    for pair in pairs:
        for copy in range(COPIES.get(len(pair.source.split()), 1)):
            yield as_typed(pair, copy)
        if _choice(pair, len(CHANGES) + 1) % JOINED == 0:
            after = pairs[_choice(pair, len(CHANGES) + 2) % len(pairs)]
            yield f"{pair.source} {after.source}", f"{pair.target} {after.target}"


def _choice(pair: Pair, question: int, copy: int = 0) -> int:
    """A number for a pair's source, the same at every run; questions are 1 to 9."""
    return hash_value(pair.source, question + 10 * copy)


def write(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """A line a pair, a tab between."""
    write_text(path, "".join(f"{source}\t{target}\n" for source, target in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--plain", action="store_true", help="leave all sentences as they are")
    options = parser.parse_args()
    out = options.out
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds tatoeba/eng-fra.tsv.gz")
    parts = read_data(replace(DATA, train=tuple(map(os.path.expandvars, DATA.train))))
    out.mkdir(parents=True, exist_ok=True)
    for name, part in (("train", parts.train), ("valid", parts.valid), ("test", parts.test)):
        plain = options.plain or name != "train"
        lines = [(one.source, one.target) for one in part] if plain else [*to_learn_from(part)]
        write(out / f"{name}.tsv", lines)
        print(f"{name}.tsv: {len(part):,} pairs of Tatoeba, {len(lines):,} lines")


if __name__ == "__main__":
    main()
