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


def without_mark(sentence: str) -> str:
    """Without the one stop, question or exclamation mark at its end, where there is one."""
    bare = sentence[:-1].rstrip()
    return bare if sentence[-1] in ".?!" and bare and bare[-1].isalnum() else sentence


def without_capital(sentence: str) -> str:
    """With its first letter small."""
    return sentence[:1].lower() + sentence[1:]


def as_typed(pair: Pair) -> tuple[str, str]:
    """The two sentences; those chosen as people type them who are in a hurry."""
    both = pair.source, pair.target
    changes = ((WITHOUT_MARK, without_mark), (WITHOUT_CAPITAL, without_capital))
    for seed, (one_in, change) in zip(_SEEDS, changes):
        if place(pair.source, seed) % one_in == 0:
            both = change(both[0]), change(both[1])
    return both


def write(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """A line a pair, a tab between."""
    write_text(path, "".join(f"{source}\t{target}\n" for source, target in pairs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path, help="the folder to write to")
    out = parser.parse_args().out
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("set REGARD_DATA to the folder that holds tatoeba/eng-fra.tsv.gz")
    parts = read_data(replace(DATA, train=tuple(map(os.path.expandvars, DATA.train))))
    out.mkdir(parents=True, exist_ok=True)
    write(out / "train.tsv", map(as_typed, parts.train))
    for name, part in (("valid", parts.valid), ("test", parts.test)):
        write(out / f"{name}.tsv", [(pair.source, pair.target) for pair in part])
    print(f"{len(parts.train):,} pairs, {len(parts.valid):,} and {len(parts.test):,} held out")


if __name__ == "__main__":
    main()
