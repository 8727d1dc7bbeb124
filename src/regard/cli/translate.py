"""`regard translate`: a text in another language, and which word looked at which."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
from regard.translate.data.lines import lines
from regard.translate.translator import Translation, Translator
from regard.viewer.document import checked_page_path
from regard.whole_files import write_text


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
        Path | None,
        typer.Option(help="Translate each line of this file (.gz too); - is standard input."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where translations of lines go; else standard output.")
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(
            min=1, help="Hypotheses kept while searching; 1 is greedy; else as in training (5)."
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many translations of each text, at most --beam; of lines, each then comes "
            "as line number, score and translation, with tabs between.",
        ),
    ] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Lines that are translated at once.")] = 64,
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
    """Translate a text and show which source word each word looked at; or translate many lines.

    A text is one sentence, and so is a line: that is what translators are trained on.
    """
    _check_options(text, file, out, n_best, plot, html, pharaoh)
    translator = _load(model)
    for option, path in (("--pharaoh", pharaoh), ("--plot", plot), ("--html", html)):
        if path is not None and translator.head is None:
            raise RegardError(f"{option}: {_no_matrix(translator)}")
    console = Console()
    texts = _lines(file) if text is None else [text]
    found = translator.translate(
        texts, beam=beam, n_best=n_best, batch=batch, show=None if text is None else False
    )
    if text is None:
        _write(found, out, numbered=n_best > 1)
    else:
        _show(console, translator, found[0])
    if pharaoh is not None:
        _write_links([translations[0] for translations in found], pharaoh)
    if plot is not None:
        _picture(found[0][0]).save(plot)
        console.print(Text.assemble("picture of the alignment: ", (str(plot), "bold")))
    if html is not None:
        found[0][0].save(html)
        console.print(Text.assemble("page of every head: ", (str(html), "bold")))


def _check_options(
    text: str | None,
    file: Path | None,
    out: Path | None,
    n_best: int,
    plot: Path | None,
    html: Path | None,
    pharaoh: Path | None,
) -> None:
    """Refuse what does not go together, and places that cannot be written, before any work."""
    if plot is not None:
        checked_path(plot)
    if html is not None:
        checked_page_path(html)
    for path in (out, pharaoh):
        if path is not None and str(path) != "-" and not path.parent.is_dir():
            raise RegardError(f"{path}: there is no folder {path.parent}")
    if text is not None and file is not None:
        raise RegardError(f"both a text and --file {file} were given; say one of them")
    if text is not None and out is not None:
        raise RegardError(f"--out {out} is for lines of --file or standard input, but a text came")
    if n_best > 1 and pharaoh is not None:
        raise RegardError(
            "--pharaoh writes one line of links a text, so it does not go with --n-best"
        )
    if text is None and (plot is not None or html is not None):
        raise RegardError("--plot and --html show one text; give it as an argument")
    if text is None and str(pharaoh) == "-" and str(out or "-") == "-":
        raise RegardError(
            "translations and --pharaoh - would both go to standard output; say --out too"
        )


def _load(model: Path | None) -> Translator:
    try:
        return Translator.load(model)
    except RegardError as error:
        if model is not None:
            raise
        raise RegardError(
            f"the translator that ships with regard cannot be read: {error}; say another with "
            "--model, such as `regard train` makes"
        ) from error


def _lines(file: Path | None) -> list[str]:
    """The lines of a file or of standard input, each with a text."""
    if file is None and sys.stdin.isatty():
        raise RegardError("there is no text: give one, or --file, or lines on standard input")
    piped = file is None or str(file) == "-"
    name = "standard input" if piped else str(file)
    found = []
    for number, line in _piped() if piped else lines(Path(name)):
        if not line.strip():
            raise RegardError(f"{name}:{number}: the line is empty, expected a sentence")
        found.append(line)
    return found


def _piped() -> Iterator[tuple[int, str]]:
    """The lines of standard input with their numbers; they end at a line feed alone."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield number, line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise RegardError(f"standard input:{number}: bytes that are not UTF-8") from error


def _write(found: list[list[Translation]], out: Path | None, *, numbered: bool) -> None:
    """A line a translation, with the number of its line and its score where there are several."""
    text = "".join(
        f"{number}\t{one.score:.4f}\t{one.text}\n" if numbered else f"{one.text}\n"
        for number, translations in enumerate(found, 1)
        for one in translations
    )
    if out is None or str(out) == "-":
        sys.stdout.write(text)
        return
    write_text(out, text)


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
        console.print(Text.assemble((label(one.text), "bold"), (score, "dim")), soft_wrap=True)
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


def _picture(translation: Translation) -> Heatmap:
    matrix = translation.matrix
    assert matrix is not None  # a model without one was refused
    return Heatmap(matrix.weights, matrix.target, matrix.source, translation.text)
