"""Pairs for training, validation and test, with no source sentence in two of them.

A sentence's part follows from its own hash and the seed. So a share stays the same sentences when
the file grows or is put in another order. A random split of pairs would leak: in collections of
everyday sentences, a third of the pairs repeat a source.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from regard.errors import RegardError
from regard.translate.data.pairs import Pair

_ALL = 1 << 64


class Split(NamedTuple):
    """Three lists of pairs; no source of one is in another."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]


def split(
    pairs: Iterable[Pair], *, valid: float | int, test: float | int = 0, seed: int = 0
) -> Split:
    """Split by distinct source sentence; the order inside each part stays.

    Two sources are the same when they differ in case, spaces or compatibility forms of characters
    alone.

    Args:
        pairs: all of them.
        valid: how much goes to validation: a share of the distinct sources (0.02), or their number
            (1000).
        test: how much goes to test.
        seed: another one gives another split.
    """
    pairs = list(pairs)
    hashes = [hash_value(pair.source, seed) for pair in pairs]
    distinct = sorted(set(hashes))
    test_end = _end("test", test, 0, distinct)
    valid_end = _end("valid", valid, test_end, distinct)
    splits = Split([], [], [])
    for pair, value in zip(pairs, hashes):
        held_out = splits.test if value < test_end else splits.valid
        (held_out if value < valid_end else splits.train).append(pair)
    return splits


def hash_value(source: str, seed: int) -> int:
    """A hash of a sentence, from 0 to 2⁶⁴, which decides its split."""
    same = " ".join(unicodedata.normalize("NFKC", source).casefold().split())
    text = f"{seed}\n{same}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def _end(name: str, size: float | int, start: int, distinct: list[int]) -> int:
    """The hash at which a split ends that begins at `start`."""
    if isinstance(size, float):
        end = start + round(size * _ALL)
        if not 0 <= size < 1 or end > _ALL:
            raise RegardError(f"{name}={size}, expected a share below 1, all shares together too")
        return end
    left = [value for value in distinct if value >= start]
    if not 0 <= size <= len(left):
        others = len(distinct) - len(left)
        raise RegardError(
            f"{name}={size}, expected from 0 to {len(left)}: there are {len(distinct)} distinct "
            "sources" + (f", of which test takes {others}" if others else "")
        )
    return left[size - 1] + 1 if size else start
