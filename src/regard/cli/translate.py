"""`regard translate`: a text in another language, and which word looked at which."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from regard.cli.terminal import heatmap, ink_of, label
from regard.errors import RegardError
from regard.plots import Heatmap
from regard.plots.specs import checked_path
from regard.translate.alignment import write_links, write_pharaoh
from regard.translate.translator import Translation, Translator
from regard.viewer.document import Page, checked_page_path, page


def translate(
    text: Annotated[
        str | None,
        typer.Argument(help="The text; without it, lines are read from --file or standard input."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="A checkpoint that `regard train` wrote; English to French if none."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Translate each line of this file; - is standard input.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where translations of lines go; else standard output.")
    ] = None,
    beam: Annotated[int, typer.Option(help="Hypotheses kept while searching; 1 is greedy.")] = 5,
    n_best: Annotated[int, typer.Option(help="How many translations of each text.")] = 1,
    batch: Annotated[int, typer.Option(help="Lines that are translated at once.")] = 64,
    plot: Annotated[
        Path | None, typer.Option(help="Where a picture of the alignment goes (png, svg or pdf).")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Where a page of every head's attention goes (html).")
    ] = None,
    pharaoh: Annotated[
        Path | None,
        typer.Option(help="Where links go, a line a text, source-target; - is standard output."),
    ] = None,
) -> None:
    """Translate a text and show which source word each word looked at; or translate many lines."""
    if plot is not None:
        checked_path(plot)
    if html is not None:
        checked_page_path(html)
    if text is not None and file is not None:
        raise RegardError(f"both a text and --file {file} were given; say one of them")
    if n_best > 1 and pharaoh is not None:
        raise RegardError(
            "--pharaoh writes one line of links a text, so it does not go with --n-best"
        )
    many = text is None
    if many and (plot is not None or html is not None):
        raise RegardError("--plot and --html show one text; give it as an argument")
    translator = Translator.load(model)
    if pharaoh is not None and translator.head is None:
        raise RegardError(f"--pharaoh: {_no_matrix(translator)}")
    console = Console()
    lines = _lines(file) if many else [text or ""]
    found = translator.translate(
        lines, beam=beam, n_best=n_best, batch=batch, show=None if many else False
    )
    if many:
        _write(found, out)
    else:
        _show(console, translator, found[0])
    if pharaoh is not None:
        _write_links([translations[0] for translations in found], pharaoh)
    if plot is not None:
        _picture(found[0][0], translator).save(plot)
        console.print(Text.assemble("picture of the alignment: ", (str(plot), "bold")))
    if html is not None:
        _page(found[0][0], translator).save(html)
        console.print(Text.assemble("page of every head: ", (str(html), "bold")))


def _lines(file: Path | None) -> list[str]:
    """The lines of a file or of standard input, each with a text."""
    name = "standard input" if file is None or str(file) == "-" else str(file)
    try:
        if name == "standard input":
            if file is None and sys.stdin.isatty():
                raise RegardError(
                    "there is no text: give one, or --file, or lines on standard input"
                )
            data = sys.stdin.buffer.read()
        else:
            data = Path(name).read_bytes()
        lines = data.decode("utf-8").splitlines()
    except OSError as error:
        raise RegardError(f"{name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        number = data[: error.start].count(b"\n") + 1
        raise RegardError(f"{name}:{number}: bytes that are not UTF-8") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise RegardError(f"{name}:{number}: the line is empty, expected a sentence")
    return lines


def _write(found: list[list[Translation]], out: Path | None) -> None:
    """A line a translation; of several of one text, those of a text follow each other."""
    text = "".join(f"{one.text}\n" for translations in found for one in translations)
    if out is None:
        sys.stdout.write(text)
        return
    half_done = out.with_name(out.name + ".part")
    try:
        half_done.write_text(text, encoding="utf-8")
        half_done.replace(out)
    except OSError as error:
        raise RegardError(f"{out} cannot be written: {error.strerror}") from error
    finally:
        half_done.unlink(missing_ok=True)


def _write_links(translations: list[Translation], path: Path) -> None:
    links = [one.links for one in translations]
    if str(path) != "-":
        write_links(path, links)
        return
    for one in links:
        print(write_pharaoh(one))


def _show(console: Console, translator: Translator, translations: list[Translation]) -> None:
    """The translations, and the matrix of the best one."""
    best = translations[0]
    for one in translations:
        score = f"   {one.score:.2f}" if len(translations) > 1 else ""
        console.print(Text.assemble((label(one.text), "bold"), (score, "dim")))
    if best.matrix is None:
        console.print(Text(f"no alignment: {_no_matrix(translator)}", "italic"))
        return
    ink = ink_of(console)
    dash = "-" if ink == "ascii" else "–"
    console.print(Text(f"\neach row: what its word looked at, in percent {dash} {translator.head}"))
    matrix = best.matrix
    console.print(
        heatmap(matrix.weights, matrix.target, matrix.source, width=console.width, ink=ink)
    )


def _no_matrix(translator: Translator) -> str:
    name = translator.checkpoint.config.model.name
    return f"the model ({name}) has no attention from target to source"


def _picture(translation: Translation, translator: Translator) -> Heatmap:
    if translation.matrix is None:
        raise RegardError(f"--plot: {_no_matrix(translator)}")
    matrix = translation.matrix
    return Heatmap(matrix.weights, matrix.target, matrix.source, translation.text)


def _page(translation: Translation, translator: Translator) -> Page:
    if translation.matrix is None:
        raise RegardError(f"--html: {_no_matrix(translator)}")
    return page(
        translation.trace,
        title=f"{translation.source} → {translation.text}",
        words=translation.words,
    )
