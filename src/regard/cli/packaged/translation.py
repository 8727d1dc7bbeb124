"""Translators: a text, its translation, and cross-attention between the two."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.cli.packaged.base import LookResult
from regard.errors import RegardError
from regard.translate.translator import Translation, Translator
from regard.translate.vocabulary.contract import unknown_words

LONGEST = 200  # tokens of a translation
_ROOM = 10  # tokens beyond twice the source, as in a search without a limit
_RUN_FILES = ("best", "average", "last")


@dataclass(frozen=True)
class PackagedTranslator:
    """A translator whose attention is shown; if it has none to the source, its encoder's own."""

    kind: ClassVar[str] = "text"
    title: str
    translator: Translator

    def __post_init__(self) -> None:
        if self.translator.head is None and not self.translator.inside:
            name = self.translator.checkpoint.config.model.name
            raise RegardError(
                f"{self.title}: the model ({name}) has no attention from target to source, nor any "
                "inside its encoder, so there is nothing to look at"
            )

    @classmethod
    def of_checkpoint(cls, path: Path) -> PackagedTranslator:
        """A checkpoint of `regard train`, named after its run."""
        return cls(run_name(path), Translator.load(path))

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.translator.checkpoint.source.encode(text))

    def knows(self, text: str) -> bool:
        """Whether the vocabulary has all words of a text."""
        source = self.translator.checkpoint.source
        return not unknown_words(source.encode(text), source.words(text))

    def look(self, text: str) -> LookResult:
        """The attention of a whole translation."""
        *_, last = self.steps(text, LONGEST)
        return last

    def steps(self, text: str, most: int) -> Generator[LookResult]:
        """The translation token by token; the last one is complete.

        Args:
            text: the source.
            most: maximum number of tokens.
        """
        limit = self.translator.checkpoint.config.search.longest or most
        longest = min(most, limit, 2 * self.tokens(text) + 2 + _ROOM)
        translation = None
        for translation in self.translator.steps(text, longest=longest):
            if translation.trace[0].shape.queries:
                yield look_result(self.title, translation)
        if translation is None or not translation.trace[0].shape.queries:
            raise RegardError("the translation of this text is empty")


def look_result(title: str, translation: Translation) -> LookResult:
    """A translation as a page shows it: both texts in words, and the head that aligns."""
    options = translation.page_options | {"title": title}
    return LookResult(translation.trace, **options, written=translation.text)


def run_name(path: Path) -> str:
    """The name of a checkpoint: that of its folder if it is a training's, else the file's."""
    return path.resolve().parent.name if path.stem in _RUN_FILES else path.stem


@functools.cache
def shipped_translator(name: str) -> PackagedTranslator:
    """A translator that ships with the package; its name is source-target."""
    source, target = name.title().split("-")
    return PackagedTranslator(f"{source} to {target}", Translator.load(name))
