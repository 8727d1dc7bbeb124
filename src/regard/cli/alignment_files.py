"""The files that `regard align` reads: sentences, links to score, gold links; checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from regard.errors import RegardError
from regard.translate.alignment import Gold, Links, read_links
from regard.translate.data.pairs import Pair, ParallelFiles


def read_gold(path: Path, first: int) -> list[Gold]:
    """Gold links; a remark if they seem to count from 1."""
    gold = read_links(path, first=first)
    words = {word for sentence in gold for link in sentence.possible for word in link}
    if not words:
        raise RegardError(f"{path} has {len(gold)} lines and no link, expected gold links")
    if first == 0 and 0 not in words:
        note = f"no link of {path} has a word 0: if it counts from 1, say --gold-first 1"
        print(f"regard: {note}", file=sys.stderr)
    return gold


def read_scored_links(path: Path, first: int) -> list[Links]:
    """Links to score."""
    links = [sentence.possible for sentence in read_links(path, first=first)]
    if not links:
        raise RegardError(f"{path} has no lines, expected links, one line per sentence")
    return links


def sentence_pairs(source: Path, target: Path) -> list[Pair]:
    """The sentences of two files, at least one."""
    pairs = list(ParallelFiles(source, target))
    if not pairs:
        raise RegardError(f"{source} and {target} have no lines, expected sentences to align")
    return pairs


def check_gold(
    gold: Sequence[Gold], pairs: Sequence[Pair], paths: tuple[Path, Path, Path], first: int
) -> None:
    """Refuse gold links that lie outside these sentences.

    Args:
        gold: the links.
        pairs: the sentences.
        paths: the files of the gold links, the sources and the targets.
        first: the number of the first word in the file of gold links.
    """
    path, *sides = paths
    if len(gold) != len(pairs):
        raise RegardError(f"{path} has {len(gold)} lines, but {sides[0]} has {len(pairs)}")
    for line, (links, pair) in enumerate(zip(gold, pairs), 1):
        sizes = len(pair.source.split()), len(pair.target.split())
        for link in sorted(links.possible):
            for word, size, side in zip(link, sizes, sides):
                if word >= size:
                    written = "-".join(str(number + first) for number in link)
                    raise RegardError(
                        f"{path}:{line}: the link {written} has a word {word + first}, but "
                        f"{side}:{line} has {size} words, {first} to {size - 1 + first}"
                    )
