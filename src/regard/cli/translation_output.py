"""What `regard translate` shows and writes of its translations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from regard.cli.terminal import heatmap, ink_of, label
from regard.errors import RegardError
from regard.files import written_whole
from regard.translate.alignment import Matrix, write_pharaoh
from regard.translate.alignment.preferred_head import preferred_head
from regard.translate.translator import Translation, Translator


def no_matrix(translator: Translator) -> str:
    """That a model has no attention from target to source."""
    name = translator.checkpoint.config.model.name
    return f"the model ({name}) has no attention from target to source"


def show(console: Console, translator: Translator, translations: list[Translation]) -> None:
    """The translations, and the matrix of the best one, or what the model has instead."""
    best = translations[0]
    if not best.text:
        console.print(Text("the translation is empty", "italic"))
    for one in translations:
        if not one.text:
            continue
        score = f"   {one.score:.2f}" if len(translations) > 1 else ""
        console.print(Text.assemble((label(one.text), "bold"), (score, "dim")), soft_wrap=True)
    dash = "-" if ink_of(console) == "ascii" else "–"
    first = "of the first, " if len(translations) > 1 else ""
    if best.matrix is not None:
        if best.matrix.target:
            said = f"{first}each row: what its word looked at, in percent "
            said += f"{dash} {translator.head} ({translator.reading})"
            _draw(console, best.matrix, said)
            _tell_ends(console, translator, best)
            _tell_of_reading(console, translator)
        return
    inner = "" if best.inside is not None else ", nor any inside its encoder"
    console.print(Text(f"no alignment: {no_matrix(translator)}{inner}", "italic"))
    if best.inside is not None:
        said = f"each row: what a source word looked at in the encoder, in percent {dash} "
        _draw(console, best.inside, said + ", ".join(translator.inside))


def _draw(console: Console, matrix: Matrix, said: str) -> None:
    console.print(Text(f"\n{said}"))
    ink = ink_of(console)
    console.print(
        heatmap(matrix.weights, matrix.target, matrix.source, width=console.width, ink=ink)
    )


def _tell_ends(console: Console, translator: Translator, translation: Translation) -> None:
    """Name the words that looked mostly at the end of the source, where that is not drawn."""
    if translator.end == "kept":
        return
    names = translation.words[1].without_special().names
    words = [
        f"{label(word)} ({100 * share:.0f} %)"
        for word, share in zip(names, translation.at_the_end)
        if share > 0.5
    ]
    if words:
        said = "looked mostly at the end of the sentence, which is not drawn"
        console.print(Text(f"{said}: {', '.join(words)}; --end kept draws it"))


def _tell_of_reading(console: Console, translator: Translator) -> None:
    """What a learner may take for the model's mistake: rows of the other step, or no alignment."""
    name = translator.checkpoint.config.model.name
    if name == "tutorial":
        said = "the coefficients of this model never see the source words: this is no alignment"
    elif translator.reading == "input" and preferred_head(translator.checkpoint.extra) is None:
        said = (
            "a row is the step in which its word is the input, as is usual for Transformers; if "
            "all rows look one word too far, --reading output shows the step before"
        )
    else:
        return
    console.print(Text(said, "dim"), soft_wrap=True)


def check_words(translation: Translation) -> None:
    """Refuse to show the alignment of a translation that has no word."""
    if translation.matrix is not None and not translation.matrix.target:
        raise RegardError(
            "--plot and --html: the translation is empty, so there is nothing to show"
        )


def write_lines(
    translator: Translator,
    found: Iterator[list[Translation]],
    out: Path | None,
    pharaoh: Path | None,
    *,
    numbered: bool,
) -> None:
    """A line a translation, with the number of its line and its score where there are several.

    Lines go to standard output as they come, and into files when all are there. A line without a
    translation was empty, and is so again.
    """
    with ExitStack() as files:
        said, links = (
            None if path is None else files.enter_context(_lines_into(path))
            for path in (out or Path("-"), pharaoh)
        )
        for number, translations in enumerate(found, 1):
            if said is not None and numbered:
                said.writelines(f"{number}\t{one.score:.4f}\t{one.text}\n" for one in translations)
            elif said is not None:
                said.write("".join(one.text for one in translations) + "\n")
            if links is not None:
                links.write(_links(translator, translations) + "\n")


def write_links_of(translator: Translator, translation: Translation, path: Path) -> None:
    """The links of one text, as a line of a file or on standard output."""
    with _lines_into(path) as file:
        file.write(_links(translator, [translation]) + "\n")


def _links(translator: Translator, translations: list[Translation]) -> str:
    """The links of the best translation; words are what stands between spaces."""
    if not translations:
        return ""
    return write_pharaoh(translator.between_spaces(translations[0]).links())


@contextmanager
def _lines_into(path: Path) -> Iterator[TextIO]:
    """A file of lines, written whole or not at all; - is standard output."""
    if str(path) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    with written_whole(path) as half_done, half_done.open("w", encoding="utf-8") as file:
        yield file
