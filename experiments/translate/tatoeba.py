"""Tatoeba, English to French, split and made ready for the translator that ships.

    REGARD_DATA=... python experiments/translate/tatoeba.py experiments/translate/data/tatoeba

writes train.tsv, valid.tsv and test.tsv: 1000 distinct English sentences to validate with, 2000 to
test with, and the rest. Nearly all sentences begin with a capital and end with a stop, and people
who type one leave both out, so of the pairs to learn from, one in eight loses its end mark and one
in twelve its first capital, on both sides.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from regard.files import write_text
from regard.translate.config import DataConfig
from regard.translate.data import Pair
from regard.translate.data.split import place
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

WITHOUT_MARK = 8  # one in so many
WITHOUT_CAPITAL = 12
_SEEDS = (1, 2)  # others than that of the split, so that all choices are independent


def without_mark(source: str, target: str) -> tuple[str, str]:
    """Without the one stop, question or exclamation mark at the end, where both have one."""
    bare = source[:-1].rstrip(), target[:-1].rstrip()
    both_have_one = source[-1] in ".?!" and target[-1] in ".?!"
    return bare if both_have_one and all(one[-1:].isalnum() for one in bare) else (source, target)


def without_capital(source: str, target: str) -> tuple[str, str]:
    """With small first letters."""
    return source[:1].lower() + source[1:], target[:1].lower() + target[1:]


def as_typed(pair: Pair) -> tuple[str, str]:
    """The two sentences; those chosen as people type them who are in a hurry."""
    both = pair.source, pair.target
    changes = ((WITHOUT_MARK, without_mark), (WITHOUT_CAPITAL, without_capital))
    for seed, (one_in, change) in zip(_SEEDS, changes):
        if place(pair.source, seed) % one_in == 0:
            both = change(*both)
    return both


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
        both = [(pair.source, pair.target) if plain else as_typed(pair) for pair in part]
        write(out / f"{name}.tsv", both)
    print(f"{len(parts.train):,} pairs, {len(parts.valid):,} and {len(parts.test):,} held out")


if __name__ == "__main__":
    main()
