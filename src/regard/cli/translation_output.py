"""Output of `regard translate`: drawings on the terminal, lines and links in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from regard.cli.terminal import heatmap, ink_of, label
from regard.cli.unknown_words import remark
from regard.errors import RegardError
from regard.files import written_whole
from regard.translate.alignment import Matrix, write_pharaoh
from regard.translate.alignment.heads import preferred_head
from regard.translate.checkpoint import Checkpoint
from regard.translate.translator import Translation, Translator

_TOLD = 5  # remarks on lines


def no_attention(checkpoint: Checkpoint) -> str:
    """That a model has no attention from target to source."""
    return f"the model ({checkpoint.config.model.name}) has no attention from target to source"


def show(console: Console, translator: Translator, translations: list[Translation]) -> None:
    """The translations, and the matrix of the best one, or what the model has instead."""
    best = translations[0]
    if not best.text:
        console.print(Text("the translation is empty", "italic"))
    for translation in translations:
        if not translation.text:
            continue
        score = f"   {translation.score:.2f}" if len(translations) > 1 else ""
        line = Text.assemble((label(translation.text), "bold"), (score, "dim"))
        console.print(line, soft_wrap=True)
    dash = "-" if ink_of(console) == "ascii" else "–"
    first = "of the first, " if len(translations) > 1 else ""
    if best.matrix is not None:
        sentences = [part for part in best.parts or (best,) if part.matrix and part.matrix.target]
        for part in sentences:
            caption = f"{first}each row: what its word looked at, in percent "
            caption += f"{dash} {translator.head} ({translator.reading})"
            _draw(console, part.matrix, caption if part is sentences[0] else "")
            _report_end_attention(console, translator, part)
        if sentences:
            _explain_reading(console, translator)
        return
    inner = "" if best.inside is not None else ", nor any inside its encoder"
    console.print(Text(f"no alignment: {no_attention(translator.checkpoint)}{inner}", "italic"))
    if best.inside is not None:
        caption = f"each row: what a source word looked at in the encoder, in percent {dash} "
        _draw(console, best.inside, caption + ", ".join(translator.inside))


def _draw(console: Console, matrix: Matrix | None, caption: str) -> None:
    assert matrix is not None
    console.print(Text(f"\n{caption}"))
    ink = ink_of(console)
    console.print(
        heatmap(
            matrix.weights, matrix.target, matrix.source, width=console.width, ink=ink, peak=1.0
        )
    )


def _report_end_attention(
    console: Console, translator: Translator, translation: Translation
) -> None:
    """Name the words that attend mostly to the end of the source, unless it is drawn."""
    if translator.end == "kept":
        return
    names = translation.words[1].without_special().names
    words = [
        f"{label(word)} ({100 * share:.0f} %)"
        for word, share in zip(names, translation.at_the_end)
        if share > 0.5
    ]
    if words:
        remark = "looked mostly at the end of the sentence, which is not drawn"
        console.print(Text(f"{remark}: {', '.join(words)}; --end kept draws it"))


def _explain_reading(console: Console, translator: Translator) -> None:
    """What may look like a mistake of the model: shifted rows, or weights that are no alignment."""
    name = translator.checkpoint.config.model.name
    if name == "tutorial":
        remark = "the coefficients of this model never see the source words: this is no alignment"
    elif name == "transformer" and translator.reading == "input" and not _chosen(translator):
        remark = (
            "a row is the step in which its word is the input, as is usual for Transformers; if "
            "all rows look one word too far, --reading output shows the step before"
        )
    else:
        return
    console.print(Text(remark, "dim"), soft_wrap=True)


def _chosen(translator: Translator) -> bool:
    """Whether the checkpoint says which head to read."""
    return preferred_head(translator.checkpoint.extra) is not None


def check_words(translation: Translation) -> None:
    """Refuse to show the alignment of an empty translation."""
    if translation.matrix is not None and not translation.matrix.target:
        raise RegardError(
            "--plot and --html: the translation is empty, so there is nothing to show"
        )


def answer_prompts(
    translator: Translator, console: Console, *, as_json: bool, **options: Any
) -> None:
    """Ask for texts on the terminal and show each translation, until an empty line or its end."""
    console.print(Text("a text to translate; an empty line ends", "dim"))
    while True:
        try:
            text = input("> ")
        except EOFError:
            return
        if not text.strip():
            return
        try:
            (translations,) = translator.translate([text], **options)
        except RegardError as error:  # of this text; the next one may do
            remark(str(error))
            continue
        if as_json:
            print(_json_line(translations), end="")
            continue
        show(console, translator, translations)
        for each in translations[0].remarks:
            remark(each)


def write_json(translated: Iterator[list[Translation]], out: Path | None) -> None:
    """A line of JSON for each text: a list of its translations."""
    with _lines_into(out or Path("-")) as file:
        for translations in translated:
            file.write(_json_line(translations))


def _json_line(translations: list[Translation]) -> str:
    tables = [translation.table() for translation in translations]
    return json.dumps(tables, ensure_ascii=False) + "\n"


class LineRemarks:
    """Remarks on the translations of lines, of which the first are told."""

    def __init__(self) -> None:
        self.first: list[str] = []
        self.count = 0

    def collected(self, translated: Iterator[list[Translation]]) -> Iterator[list[Translation]]:
        """The translations as they are."""
        for number, translations in enumerate(translated, 1):
            for each in translations[0].remarks if translations else ():
                self.count += 1
                if len(self.first) < _TOLD:
                    self.first.append(f"line {number}: {each}")
            yield translations

    def report(self) -> None:
        """Tell them on standard error."""
        for each in self.first:
            remark(each)
        if self.count > len(self.first):
            more = self.count - len(self.first)
            remark(f"and {more:,} more remarks on other lines; --json has all")


def write_lines(
    translator: Translator,
    translated: Iterator[list[Translation]],
    out: Path | None,
    pharaoh: Path | None,
    *,
    numbered: bool,
) -> None:
    """One line per translation; with several per text, line number and score before each.

    Standard output is written as translations come, files when all are there. An empty source line
    gives an empty line.
    """
    with ExitStack() as files:
        lines, links = (
            None if path is None else files.enter_context(_lines_into(path))
            for path in (out or Path("-"), pharaoh)
        )
        for number, translations in enumerate(translated, 1):
            if lines is not None and numbered:
                lines.writelines(f"{number}\t{t.score:.4f}\t{t.text}\n" for t in translations)
            elif lines is not None:
                lines.write("".join(t.text for t in translations) + "\n")
            if links is not None:
                links.write(_links(translator, translations) + "\n")


def write_links_of(translator: Translator, translation: Translation, path: Path) -> None:
    """Write the links of one text as a line, to a file or standard output."""
    with _lines_into(path) as file:
        file.write(_links(translator, [translation]) + "\n")


def _links(translator: Translator, translations: list[Translation]) -> str:
    """The links of the best translation, between words separated by spaces."""
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
