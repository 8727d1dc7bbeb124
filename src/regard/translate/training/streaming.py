"""Training pairs that are not all in memory: read anew in every epoch, a block at a time.

Before the first step all files are read once, to check and count what they hold, to split off
validation and test pairs, and to draw a sample that vocabularies are learned from. An epoch reads
the files in an order of its own, and cuts what they hold into blocks of nearly equal size, within
which sentences are sorted by length and shuffled. Memory holds a block, the sample and what was
split off, however many pairs there are.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from regard.errors import RegardError
from regard.translate.data import (
    Cleaner,
    Cleaning,
    CleaningReport,
    Pair,
    PairFile,
    Shards,
    Split,
)
from regard.translate.data.batches import epoch_seed
from regard.translate.data.split import hash_value


@dataclass(frozen=True)
class StreamedPairs:
    """Training pairs in files.

    | field      | meaning                                                                    |
    |------------|----------------------------------------------------------------------------|
    | `files`    | the files                                                                  |
    | `cleaning` | which of their pairs are left out; duplicates, among `buffer` pairs of one |
    |            | file, so that it does not depend on the order of the files                 |
    | `buffer`   | maximum pairs in a block                                                   |
    | `seed`     | of the hashes by which validation and test pairs were split off            |
    | `least`    | the least hash of a source that was not                                    |
    | `count`    | how many pairs there are to learn from                                     |
    | `checksum` | of all pairs that cleaning keeps                                           |
    """

    files: Sequence[PairFile]
    cleaning: Cleaning
    buffer: int
    seed: int
    least: int
    count: int
    checksum: int

    @property
    def n_blocks(self) -> int:
        """The number of blocks in an epoch."""
        return -(-self.count // self.buffer)

    def blocks(self, seed: int, epoch: int, first: int = 0) -> Iterator[list[Pair]]:
        """The blocks of an epoch, from the `first` on; those before are read and passed over."""
        files = list(self.files)
        random.Random(epoch_seed(seed, epoch)).shuffle(files)
        cleaned = _cleaned(files, Cleaner(self.cleaning, self.buffer))
        pairs = (
            pair
            for pair in cleaned
            if not self.least or hash_value(pair.source, self.seed) >= self.least
        )
        ends = [self.count * number // self.n_blocks for number in range(self.n_blocks + 1)]
        passed = sum(1 for _ in islice(pairs, ends[first]))
        for end in ends[first + 1 :]:
            block = list(islice(pairs, end - passed))
            passed += len(block)
            if passed < end:
                raise RegardError(
                    f"the files of data.train have changed: there were {self.count:,} pairs to "
                    f"learn from, now there are {passed:,}"
                )
            yield block


@dataclass(frozen=True)
class Survey:
    """What one reading of the files found.

    | field       | meaning                                                             |
    |-------------|---------------------------------------------------------------------|
    | `split`     | pairs to learn from, or a sample of these; to validate and to test  |
    | `report`    | how many pairs were read, and how many left out for which reason    |
    | `learned`   | sources of pairs to learn from, at least those that were asked for  |
    | `stream`    | where the pairs to learn from are read, where they are a sample     |
    """

    split: Split
    report: CleaningReport
    learned: set[str]
    stream: StreamedPairs | None = None


def survey(
    files: PairFile,
    cleaning: Cleaning,
    *,
    buffer: int,
    valid: int,
    test: int,
    seed: int,
    sources: set[str],
) -> Survey:
    """Read all files once.

    Args:
        files: the files.
        cleaning: which pairs to leave out.
        buffer: how many pairs memory may hold.
        valid: number of distinct sources to split off for validation.
        test: the same for test.
        seed: of the split.
        sources: which to look for among the pairs.
    """
    shards = files.files if isinstance(files, Shards) else (files,)
    cleaner = Cleaner(cleaning, buffer)
    sample, held_out = _Sample(buffer), _LeastHashes(valid + test, seed)
    checksum, learned = 0, set()
    for number, pair in enumerate(_cleaned(shards, cleaner)):
        checksum = zlib.crc32(f"{pair.source}\n{pair.target}\n".encode(), checksum)
        sample.offer(number, pair)
        held_out.offer(number, pair)
        if pair.source in sources:
            learned.add(pair.source)
    hashes = held_out.hashes
    if cleaner.report.kept and len(hashes) < valid + test:
        raise RegardError(
            f"data.valid_pairs and data.test_pairs are {valid + test} together, but data.train has "
            f"{len(hashes)} distinct sources"
        )
    least = hashes[-1] + 1 if hashes else 0
    left = [pair for pair in sample.pairs if not least or hash_value(pair.source, seed) >= least]
    split = Split(left, held_out.pairs(hashes[test:]), held_out.pairs(hashes[:test]))
    count = cleaner.report.kept - len(split.valid) - len(split.test)
    stream = StreamedPairs(shards, cleaning, buffer, seed, least, count, checksum)
    return Survey(split, cleaner.report, learned, stream)


def _cleaned(files: Sequence[PairFile], cleaner: Cleaner) -> Iterator[Pair]:
    for file in files:
        yield from cleaner.kept(file)


class _Sample:
    """A uniform sample of pairs, in their order (Vitter, 1985, algorithm R)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.chosen: list[tuple[int, Pair]] = []
        self.random = random.Random(0)

    def offer(self, number: int, pair: Pair) -> None:
        """The next pair."""
        if number < self.size:
            self.chosen.append((number, pair))
        elif (place := self.random.randrange(number + 1)) < self.size:
            self.chosen[place] = (number, pair)

    @property
    def pairs(self) -> list[Pair]:
        return [pair for _, pair in sorted(self.chosen, key=lambda entry: entry[0])]


class _LeastHashes:
    """The pairs of the `size` distinct sources with the least hashes: what `split` splits off."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.negated: list[int] = []  # a heap with the largest hash first
        self.by_hash: dict[int, list[tuple[int, Pair]]] = {}

    def offer(self, number: int, pair: Pair) -> None:
        """The next pair."""
        if not self.size:
            return
        value = hash_value(pair.source, self.seed)
        if value in self.by_hash:
            self.by_hash[value].append((number, pair))
        elif len(self.negated) < self.size or value < -self.negated[0]:
            heappush(self.negated, -value)
            self.by_hash[value] = [(number, pair)]
            if len(self.negated) > self.size:
                del self.by_hash[-heappop(self.negated)]

    @property
    def hashes(self) -> list[int]:
        """The least hashes, in their order."""
        return sorted(self.by_hash)

    def pairs(self, hashes: Sequence[int]) -> list[Pair]:
        """The pairs of these hashes, in the order in which they were read."""
        numbered = [entry for value in hashes for entry in self.by_hash[value]]
        return [pair for _, pair in sorted(numbered, key=lambda entry: entry[0])]
