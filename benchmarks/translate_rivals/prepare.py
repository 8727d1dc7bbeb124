"""Multi30k, English to French, as files that every system reads alike: words between spaces."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path

from regard.translate.tokens import NAMES
from regard.translate.vocabulary import WordVocabulary, tokenise

LANGUAGES = ("en", "fr")
ENTRIES = 10_000  #: of each vocabulary, the four that every system adds included


def prepare(multi30k: Path, folder: Path, pairs: int | None) -> None:
    """Write `train`, `dev` and `words` of both languages.

    Args:
        multi30k: the folder with `train.en.gz` and the others.
        folder: where to write.
        pairs: so many training pairs; all when None. The words are always those of all.
    """
    for language in LANGUAGES:
        train = _tokenised(multi30k / f"train.{language}.gz")
        vocabulary = WordVocabulary.train(train, size=ENTRIES, cut="spaces")
        _write(folder / f"words.{language}", vocabulary.entries[len(NAMES) :])
        _write(folder / f"train.{language}", list(islice(train, pairs)))
        _write(folder / f"dev.{language}", _tokenised(multi30k / f"val.{language}.gz"))


def _tokenised(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [" ".join(tokenise(line)) for line in lines]


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
