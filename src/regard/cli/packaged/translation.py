"""Translators: a text in, its translation out, and cross-attention between the two."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from regard.cli.packaged.base import Looked
from regard.errors import RegardError
from regard.translate.translator import Translation, Translator
from regard.translate.vocabulary.unknown_words import unknown_words

LONGEST = 200  # tokens of a translation
_ROOM = 10  # tokens beyond twice the source, as a search has them that is told no limit
_OF_A_RUN = ("best", "average", "last")


@dataclass(frozen=True)
class Translating:
    """A model that writes a text again in another language.

    One whose only attention is inside its encoder shows that, the same at every step.
    """

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
    def of_checkpoint(cls, path: Path) -> Translating:
        """A checkpoint that `regard train` wrote, by the name of its run."""
        return cls(run_name(path), Translator.load(path))

    def tokens(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self.translator.checkpoint.source.encode(text))

    def knows(self, text: str) -> bool:
        """Whether no word of a text is unknown, or spelt by its bytes."""
        source = self.translator.checkpoint.source
        return not unknown_words(source.encode(text), source.words(text))

    def look(self, text: str) -> Looked:
        """The attention of a whole translation."""
        *_, last = self.steps(text, LONGEST)
        return last

    def steps(self, text: str, most: int) -> Generator[Looked]:
        """The translation as it grows; the last one is finished.

        Args:
            text: what is translated.
            most: tokens of the translation.
        """
        limit = self.translator.checkpoint.config.search.longest or most
        longest = min(most, limit, 2 * self.tokens(text) + 2 + _ROOM)
        found = None
        for found in self.translator.steps(text, longest=longest):
            if found.trace[0].shape.queries:
                yield looked(self.title, found)
        if found is None or not found.trace[0].shape.queries:
            raise RegardError("the translation of this text is empty")


def looked(title: str, translation: Translation) -> Looked:
    """A translation as a page shows it: both texts in words, the lines of the head that aligns."""
    options = translation.page_options | {"title": title}
    return Looked(translation.trace, **options, written=translation.text)


def run_name(path: Path) -> str:
    """What a checkpoint is called: its own name, or the folder's where a training gave it one."""
    return path.resolve().parent.name if path.stem in _OF_A_RUN else path.stem


@functools.cache
def english_french() -> Translating:
    """The translator that comes with the package: English to French, one head of attention."""
    return Translating("English to French", Translator.load())
