"""From a configuration to training examples: pairs are read, cleaned, split and tokenised."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from regard.errors import RegardError
from regard.translate.config import DataConfig, VocabularyConfig
from regard.translate.data import (
    Cleaning,
    CleaningReport,
    Examples,
    Pair,
    PairFile,
    Split,
    clean,
    pair_file,
    read_pairs,
    split,
)
from regard.translate.training.streaming import StreamedPairs, Survey, survey
from regard.translate.vocabulary import PieceVocabulary, Vocabulary, WordVocabulary


@dataclass(frozen=True)
class Pairs:
    """The pairs of a training.

    | field     | meaning                                                                     |
    |-----------|-----------------------------------------------------------------------------|
    | `train`   | those to learn from; a sample of them, if they are streamed                 |
    | `valid`   | those to validate with                                                      |
    | `test`    | those to test with                                                          |
    | `report`  | of cleaning                                                                 |
    | `known`   | how many of `valid` have a source that is learned from                      |
    | `stream`  | where those to learn from are read; None if all of them are in `train`      |
    """

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    report: CleaningReport
    known: int
    stream: StreamedPairs | None = None

    @property
    def count(self) -> int:
        """How many there are to learn from."""
        return len(self.train) if self.stream is None else self.stream.count


@dataclass(frozen=True)
class Vocabularies:
    """One for each language; one and the same object when they are joint."""

    source: Vocabulary
    target: Vocabulary

    def examples(self, pairs: Sequence[Pair]) -> Examples:
        """The pairs as numbers."""
        return Examples.of(pairs, self.source, self.target)


def read_data(config: DataConfig) -> Pairs:
    """Read, clean and split the pairs that a configuration names.

    Validation and test pairs are taken as they are: an empty line among them is an error.
    """
    if not config.train:
        raise RegardError("data.train names no file: two parallel files, or one of pairs")
    cleaning = Cleaning(
        longest=config.longest, ratio=config.ratio or None, duplicates=not config.repeated
    )
    files = pair_file(*config.train, **_columns(config))
    valid = _whole(config, config.valid) if config.valid else None
    if config.valid and not valid:
        raise RegardError(f"data.valid has no pairs: {', '.join(config.valid)}")
    survey = _survey(config, files, cleaning, {pair.source for pair in valid or []})
    if not survey.report.kept:
        raise RegardError(f"no pair of data.train is left to learn from:\n{survey.report}")
    parts = survey.split
    valid = parts.valid if valid is None else valid
    test = _whole(config, config.test) if config.test else parts.test
    if not parts.train:
        raise RegardError(
            f"{_sizes(config)}: together they take every distinct source of data.train, and none "
            "is left to learn from"
        )
    if not valid:
        raise RegardError(
            "there are no pairs to validate with: give data.valid, or data.valid_pairs to split "
            "some off data.train"
        )
    in_training = sum(pair.source in survey.learned for pair in valid)
    return Pairs(parts.train, valid, test, survey.report, in_training, survey.stream)


def train_vocabularies(config: VocabularyConfig, pairs: Sequence[Pair]) -> Vocabularies:
    """Learn the vocabularies from the training pairs."""
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if config.joint:
        both = _train(config, sources + targets, config.source_size)
        return Vocabularies(both, both)
    return Vocabularies(
        _train(config, sources, config.source_size), _train(config, targets, config.target_size)
    )


def within(examples: Examples, longest_source: int | None) -> Examples:
    """The examples whose source is not too long for the model."""
    if longest_source is None:
        return examples
    fit = [index for index, source in enumerate(examples.source) if len(source) <= longest_source]
    return Examples(
        [examples.source[index] for index in fit], [examples.target[index] for index in fit]
    )


def fingerprint(examples: Examples) -> int:
    """A checksum of examples: a resumed run must continue with the same data."""
    checksum = 0
    for side in (examples.source, examples.target):
        for sentence in side:
            checksum = zlib.crc32(array("q", sentence).tobytes(), checksum)
    return checksum


def _survey(config: DataConfig, files: PairFile, cleaning: Cleaning, sources: set[str]) -> Survey:
    """Read the training pairs, all or a sample; split off those that have no file."""
    valid = 0 if config.valid else config.valid_pairs
    test = 0 if config.test else config.test_pairs
    seed = config.split_seed
    if config.buffer:
        return survey(
            files, cleaning, buffer=config.buffer, valid=valid, test=test, seed=seed,
            sources=sources,
        )  # fmt: skip
    pairs, report = clean(islice(files, config.first or None), cleaning)
    try:
        parts = split(pairs, valid=valid, test=test, seed=seed) if pairs else Split([], [], [])
    except RegardError as error:
        raise RegardError(f"{_sizes(config)}: {error}") from error
    return Survey(parts, report, {pair.source for pair in parts.train})


def _sizes(config: DataConfig) -> str:
    return f"data.valid_pairs is {config.valid_pairs} and data.test_pairs {config.test_pairs}"


def _whole(config: DataConfig, files: tuple[str, ...]) -> list[Pair]:
    return read_pairs(*files, **_columns(config) if len(files) == 1 else {})


def _columns(config: DataConfig) -> dict[str, Any]:
    """The columns and header of a file, if configured."""
    options = {"source": config.source, "target": config.target, "header": config.header or ""}
    return {name: value for name, value in options.items() if value != ""}


def _train(config: VocabularyConfig, sentences: list[str], size: int) -> Vocabulary:
    if config.kind == "pieces":
        return PieceVocabulary.train(sentences, size=size, kind=config.pieces, lower=config.lower)
    cut: Literal["words", "spaces"] = "spaces" if config.tokenised else "words"
    return WordVocabulary.train(
        sentences, size=size, lower=config.lower, least=config.least, cut=cut
    )
