"""Tatoeba, English to French, split and made ready for the translator that ships.

    REGARD_DATA=... python experiments/translate/tatoeba.py experiments/translate/data/tatoeba

writes train.tsv, valid.tsv and test.tsv: 1000 distinct English sentences to validate with, 2000 to
test with, and the rest. Nearly all sentences end with a stop, and people who type one leave it out,
so of the pairs to learn from, one in eight loses the stop on both sides.
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

WITHOUT_STOP = 8  # one in so many
_SEED = 1  # another than that of the split, so that both choices are independent


def without_stop(pair: Pair) -> tuple[str, str]:
    """The two sentences; of those chosen, and of those alone, without the stop at their end."""
    source, target = pair.source, pair.target
    chosen = place(source, _SEED) % WITHOUT_STOP == 0
    if chosen and source.endswith(".") and target.endswith(".") and not source.endswith(".."):
        return source[:-1], target[:-1]
    return source, target


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
    write(out / "train.tsv", map(without_stop, parts.train))
    for name, part in (("valid", parts.valid), ("test", parts.test)):
        write(out / f"{name}.tsv", [(pair.source, pair.target) for pair in part])
    print(f"{len(parts.train):,} pairs, {len(parts.valid):,} and {len(parts.test):,} held out")


if __name__ == "__main__":
    main()
