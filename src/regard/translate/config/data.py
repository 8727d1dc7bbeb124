"""`[data]`, `[vocabulary]` and `[vectors]`: pairs, tokenisation, pretrained word vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import RegardError
from regard.tables import check_numbers
from regard.translate.tokens import NAMES


@dataclass(frozen=True)
class DataConfig:
    """Files of pairs, and which pairs are used.

    | field                       | meaning                                                     |
    |-----------------------------|-------------------------------------------------------------|
    | `train`, `valid`, `test`    | two parallel files, or one of pairs (TSV, JSONL); `.gz`     |
    |                             | too; a pattern such as `part-*.tsv` names several files     |
    | `source`, `target`          | columns of such a file: numbers from 1, or names            |
    | `header`                    | whether its first line has column names; implied by a name  |
    | `valid_pairs`, `test_pairs` | number of distinct sources, each with all its pairs, to     |
    |                             | split off `train` if there is no such file                  |
    | `split_seed`                | seed of that split                                          |
    | `first`                     | maximum number of pairs of `train` to read; 0 for all       |
    | `longest`                   | maximum words of a side                                     |
    | `ratio`                     | maximum (longer + 1) / (shorter + 1), in words; 0 for any   |
    | `repeated`                  | keep duplicate pairs                                        |
    | `buffer`                    | pairs of `train` in memory at a time: they are read from    |
    |                             | their files in every epoch; 0 for all of them, read once    |

    Paths are relative to the configuration file; a path that begins with an environment variable,
    `$NAME/file`, is relative to the current folder.
    """

    train: tuple[str, ...] = ()
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    source: int | str = ""
    target: int | str = ""
    header: bool = False
    valid_pairs: int = 0
    test_pairs: int = 0
    split_seed: int = 0
    first: int = 0
    longest: int = 100
    ratio: float = 0.0
    repeated: bool = False
    buffer: int = 0

    def __post_init__(self) -> None:
        for name in ("train", "valid", "test"):
            files = getattr(self, name)
            if len(files) == 2 and files[0] == files[1]:
                raise RegardError(
                    f"data.{name} is {files[0]} twice: a sentence would be its own translation"
                )
            if len(files) > 2:
                raise RegardError(
                    f"data.{name} must be one file of pairs or two parallel files, "
                    f"found {len(files)}: {', '.join(files)}; a pattern such as 'part-*.tsv' names "
                    "several"
                )
        for name in ("source", "target"):
            column = getattr(self, name)
            if column != "" and self.source == self.target:
                raise RegardError(
                    f"data.source and data.target are both {column!r}: a sentence would be its own "
                    "translation"
                )
            if isinstance(column, int) and column < 1:
                raise RegardError(
                    f"data.{name} must be a column from 1, or its name; found {column}"
                )
        check_numbers("data", self, at_least_0=("valid_pairs", "test_pairs", "first", "buffer"))
        check_numbers("data", self, above_0=("longest",))
        if self.ratio != 0 and not self.ratio >= 1:
            raise RegardError(f"data.ratio must be 0 or at least 1, found {self.ratio}")
        if self.buffer and self.first:
            raise RegardError(
                f"data.first is {self.first}, but data.buffer {self.buffer} reads all pairs: give "
                "one of them"
            )


@dataclass(frozen=True)
class VocabularyConfig:
    """How sentences are tokenised.

    | field                        | meaning                                                    |
    |------------------------------|------------------------------------------------------------|
    | `kind`                       | whole words, or subwords learned by sentencepiece          |
    | `source_size`, `target_size` | maximum sizes; the source's counts for both when `joint`   |
    | `joint`                      | one vocabulary for both languages                          |
    | `lower`                      | lower-case all text                                        |
    | `pieces`                     | subword algorithm                                          |
    | `tokenised`                  | the text is tokenised already: split at spaces only        |
    | `least`                      | minimum frequency of a word; rarer ones are unknown        |
    """

    kind: Literal["words", "pieces"] = "words"
    source_size: int = 10_000
    target_size: int = 10_000
    joint: bool = False
    lower: bool = False
    pieces: Literal["unigram", "bpe"] = "unigram"
    tokenised: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        check_numbers("vocabulary", self, above_0=("least",))
        for name in ("source_size", "target_size"):
            if getattr(self, name) <= len(NAMES):
                raise RegardError(
                    f"vocabulary.{name} must be above {len(NAMES)}, the tokens that every "
                    f"vocabulary begins with; found {getattr(self, name)}"
                )


@dataclass(frozen=True)
class VectorsConfig:
    """Pretrained word vectors to start from: files of GloVe or word2vec.

    | field              | meaning                                                              |
    |--------------------|----------------------------------------------------------------------|
    | `source`, `target` | the file for the embedding of that language; none when empty         |
    | `frozen`           | freeze the embeddings that have a file                               |

    They must be as wide as the embedding: `model.embedding`, a Transformer's `model.hidden`. With
    `model.tie`, the output layer gets the vectors too and is frozen with the embedding; with "all"
    the one embedding gets the vectors of `source`, then those of `target`. Paths are as in
    `[data]`. A resumed run does not read them again.
    """

    source: str = ""
    target: str = ""
    frozen: bool = False

    @property
    def files(self) -> dict[str, str]:
        """The files there are, by side."""
        named = {"source": self.source, "target": self.target}
        return {side: file for side, file in named.items() if file}

    def __post_init__(self) -> None:
        if self.frozen and not self.files:
            raise RegardError("vectors.frozen needs vectors.source or vectors.target, found none")
