"""The files of links that `regard align` scores, checked against each other and the sentences."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.errors import RegardError
from regard.translate.alignment import Gold, Links, read_links
from regard.translate.data.pairs import Pair, ParallelFiles


def read_gold(path: Path, first: int) -> list[Gold]:
    """The links that people drew; a remark where they seem to be counted from another word."""
    found = read_links(path, first=first)
    words = {word for one in found for link in one.possible for word in link}
    if not words:
        raise RegardError(f"{path} has {len(found)} lines and no link, expected gold links")
    if first == 0 and 0 not in words:
        note = f"no link of {path} has a word 0: if it counts from 1, say --gold-first 1"
        print(f"regard: {note}", file=sys.stderr)
    return found


def made_links(path: Path, first: int) -> list[Links]:
    """Links that are to be scored."""
    found = [one.possible for one in read_links(path, first=first)]
    if not found:
        raise RegardError(f"{path} has no lines, expected links, a line a sentence")
    return found


def sentence_pairs(source: Path, target: Path) -> list[Pair]:
    """The sentences of two files, of which there must be some."""
    found = list(ParallelFiles(source, target))
    if not found:
        raise RegardError(f"{source} and {target} have no lines, expected sentences to align")
    return found


def check_gold(
    gold: Sequence[Gold], pairs: Sequence[Pair], paths: tuple[Path, Path, Path], first: int
) -> None:
    """Refuse gold links that are not of these sentences.

    Args:
        gold: the links.
        pairs: the sentences.
        paths: the files of the gold links, the sources and the targets.
        first: the number of a first word in the file of gold links.
    """
    path, *sides = paths
    if len(gold) != len(pairs):
        raise RegardError(f"{path} has {len(gold)} lines, but {sides[0]} has {len(pairs)}")
    for line, (one, pair) in enumerate(zip(gold, pairs), 1):
        sizes = len(pair.source.split()), len(pair.target.split())
        for link in sorted(one.possible):
            for word, size, side in zip(link, sizes, sides):
                if word >= size:
                    written = "-".join(str(number + first) for number in link)
                    raise RegardError(
                        f"{path}:{line}: the link {written} has a word {word + first}, but "
                        f"{side}:{line} has {size} words, {first} to {size - 1 + first}"
                    )
