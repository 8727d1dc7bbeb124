"""`regard translate`: translations, and which source word each of their words attends to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.text import Text

from regard.cli.option_checks import check_choice, check_needed
from regard.cli.threads import checked_device
from regard.cli.translation_output import (
    LineRemarks,
    answer_prompts,
    check_words,
    no_attention,
    show,
    write_json,
    write_lines,
    write_links_of,
)
from regard.cli.unknown_words import UnknownWords, remark
from regard.errors import RegardError
from regard.files import check_folder
from regard.plots.specs import checked_path
from regard.translate.alignment import head_named, heads_of
from regard.translate.alignment.matrix import Reading
from regard.translate.data.lines import lines
from regard.translate.search import SearchOptions
from regard.translate.translator import Translator
from regard.viewer.document import checked_page_path

_SEARCH, _ATTENTION, _FILES = "Search", "Attention", "Lines and files"
_WIDEST = 1000  # a beam; each hypothesis takes memory
_ENDS = {"left-out": "left out", "renormalised": "renormalised", "kept": "kept"}


def translate(
    text: Annotated[
        str | None,
        typer.Argument(
            help="The text, in quotes. Without it, or with -, lines are read from --file or "
            "standard input; on a terminal, a prompt asks for texts."
        ),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="A checkpoint of `regard train`, or french-english (default: english-french). "
            "Several, each with --model, are an ensemble: their log-probabilities are averaged."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Save a picture of the alignment of a single text (png, svg or pdf), or of the "
            "encoder's self-attention if the model has no other."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Save a page of a single text, with every head (html).")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Translate each line of this file (.gz too); - is standard input.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Output file for translated lines (default: standard output).",
            rich_help_panel=_FILES,
        ),
    ] = None,
    pharaoh: Annotated[
        Path | None,
        typer.Option(
            help="Output file for word alignments, one line per text: 1-2 aligns source word 1 "
            "and target word 2, split at spaces and counted from 0. Each target word is linked to "
            "the source word it attends to most (rule `strongest` of `regard align`, whose default "
            "is `mutual`). - is standard output; with a single text, all else then goes to "
            "standard error. Not with --n-best.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(min=1, help="Maximum sentences translated at once.", rich_help_panel=_FILES),
    ] = 64,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Write a line of JSON for each text: a list of its translations, each with words, "
            "weights, links, score and remarks.",
            rich_help_panel=_FILES,
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(help="Device of the model, such as cuda or cuda:1.")
    ] = "cpu",
    split: Annotated[
        bool,
        typer.Option(
            help="Translate sentence by sentence, and in parts what is longer than the model "
            "learned from; otherwise a text, or a line, is one sentence.",
        ),
    ] = True,
    copy: Annotated[
        bool,
        typer.Option(
            help="Replace unknown words, and numbers that the source has not got, by the source "
            "words they attend to.",
        ),
    ] = True,
    beam: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_WIDEST,
            help="Beam width; 1 is greedy (default: the checkpoint's, usually 5).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            max=_WIDEST,
            help="Number of translations per text, at most --beam, or of samples; attention is "
            "shown for the first. Translations of lines are then written as line number, score and "
            "text, separated by tabs.",
            rich_help_panel=_SEARCH,
        ),
    ] = 1,
    prefix: Annotated[
        str | None,
        typer.Option(
            help="Words that the translation must begin with. A model with a subword vocabulary "
            "may add to the last one.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    shortest: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Minimum number of tokens, the end token not counted (default: the checkpoint's).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    longest: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of tokens, including the end token (default: the checkpoint's).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Length penalty; larger values favour long translations (default: the "
            "checkpoint's, usually 0.6).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    coverage_penalty: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Coverage penalty; larger values favour translations that attend to the whole "
            "source (default: the checkpoint's, usually 0).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    sample: Annotated[
        bool | None,
        typer.Option(
            "--sample/--no-sample",
            help="Draw translations by chance instead of searching for the best (default: the "
            "checkpoint's, usually not).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="With --sample: below 1 probable tokens are drawn more often (default: 1).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --sample: draw from so many tokens, the most probable; 0 for all "
            "(default: 0).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="With --sample: draw from the most probable tokens that have this probability "
            "together (default: 1).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --sample: the same seed and text give the same samples (default: 0).",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="Head to show: 3.cross:5 is head 5 of the cross-attention in layer 3, 3.cross the "
            "mean of its heads, both from 0 (default: the one stored by `regard align --remember`, "
            "else the mean of the second-to-last layer, or of the only one).",
            rich_help_panel=_ATTENTION,
        ),
    ] = None,
    reading: Annotated[
        str | None,
        typer.Option(
            metavar="output|input",
            help="Decoding step whose attention counts as a word's: output, the step that predicts "
            "it; input, the next one, which takes it as input (default: the model's own).",
            rich_help_panel=_ATTENTION,
        ),
    ] = None,
    end: Annotated[
        str,
        typer.Option(
            metavar="|".join(_ENDS),
            help="Attention to the end-of-sentence token: left-out hides it, renormalised also "
            "rescales each row to sum to 1, kept shows the token as a word.",
            rich_help_panel=_ATTENTION,
        ),
    ] = "left-out",
) -> None:
    """Translate a text and show which source word each word attends to; or translate many lines.

    A text, like a line, is translated sentence by sentence. Empty lines stay empty. What was cut,
    copied or lost, and words that the model does not know, are named on standard error.
    """
    text = None if text == "-" else text
    prompted = text is None and file is None and sys.stdin.isatty()
    _check_options(text, file, out, n_best, plot, html, pharaoh)
    if as_json and (plot, html, pharaoh) != (None, None, None):
        raise RegardError(
            "--json has words, weights and links: --plot, --html and --pharaoh go without"
        )
    translator = _load(model, head, reading, end, device)
    _check_attention(translator, plot, html, pharaoh)
    console = Console(stderr=text is not None and str(pharaoh) == "-")
    search: dict[str, Any] = {
        "beam": beam,
        "prefix": None if prefix is None else repeat(prefix) if text is None else [prefix],
        "shortest": shortest,
        "longest": longest,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "sample": sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    overrides = {name: value for name, value in search.items() if value is not None}
    _check_search(translator.checkpoint.config.search, search, n_best)
    overrides |= {"n_best": n_best, "split": split, "copy": copy}
    unknown = UnknownWords(translator.checkpoint.source)
    if prompted:
        overrides |= {"prefix": None if prefix is None else [prefix]}
        answer_prompts(translator, console, as_json=as_json, **overrides)
        return
    if as_json:
        whole = _lines(file) if text is None else [text]
        write_json(translator.stream(whole, batch=batch, empty=True, **overrides), out)
        return
    if text is None:
        linked = pharaoh is not None
        translated = translator.stream(
            unknown.counted(_lines(file)),
            batch=batch, weights=linked, empty=True, show=None, **overrides,
        )  # fmt: skip
        remarks = LineRemarks()
        lines_of_text = remarks.collected(translated)
        write_lines(translator, lines_of_text, out, pharaoh, numbered=n_best > 1)
        unknown.report()
        remarks.report()
        return
    (translations,) = translator.translate(unknown.counted([text]), **overrides)
    best = translations[0]
    unknown.report()
    for each in best.remarks:
        remark(each)
    _remark_on_a_file(text)
    if plot is not None or html is not None:
        check_words(best)
    show(console, translator, translations)
    if pharaoh is not None:
        write_links_of(translator, best, pharaoh)
        if str(pharaoh) != "-":
            console.print(Text.assemble("links: ", (str(pharaoh), "bold")))
    if plot is not None:
        best.plot().save(plot)
        console.print(Text.assemble("picture of the attention: ", (str(plot), "bold")))
    if html is not None:
        best.save(html)
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
    """Refuse conflicting options, and paths that cannot be written, before any work."""
    if plot is not None:
        checked_path(plot)
    if html is not None:
        checked_page_path(html)
    for path in (out, pharaoh):
        if path is not None and str(path) != "-":
            check_folder(path)
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
    files = {"--file": file, "--out": out, "--pharaoh": pharaoh, "--plot": plot, "--html": html}
    _check_apart(files)


def _check_search(defaults: SearchOptions, search: dict[str, Any], n_best: int) -> None:
    """Refuse options of the search that do not go together, by the names they have here."""
    sample = defaults.sample if search["sample"] is None else search["sample"]
    if not sample:
        names = ("temperature", "top_k", "top_p", "seed")
        check_needed("--sample", None, {_option(name): search[name] for name in names})
    if sample and search["beam"] is not None:
        raise RegardError(f"--beam {search['beam']} has no effect with --sample")
    widest = defaults.beam if search["beam"] is None else search["beam"]
    if n_best > widest and not sample:
        raise RegardError(
            f"--n-best is {n_best}, expected at most the beam width, {widest}: add --beam {n_best}"
        )
    shortest, longest = search["shortest"], search["longest"]
    if longest is not None and shortest is not None and shortest >= longest:
        raise RegardError(
            f"--shortest is {shortest}, expected less than --longest, {longest}, which includes "
            "the end token"
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_apart(files: dict[str, Path | None]) -> None:
    """Refuse one file for two purposes."""
    taken: dict[Path, str] = {}
    for option, path in files.items():
        if path is None or str(path) == "-":
            continue
        if path.resolve() in taken:
            raise RegardError(
                f"{taken[path.resolve()]} and {option} are both {path}; say two files"
            )
        taken[path.resolve()] = option


def _load(
    model: list[Path] | None, head: str | None, reading: Any, end: str, device: str
) -> Translator:
    """The translator, with the attention options."""
    check_choice("--end", end, list(_ENDS))
    check_choice("--reading", reading, get_args(Reading))
    chosen_device = checked_device(device)
    try:
        translator = Translator.load(model or None, device=chosen_device)
    except RegardError as error:
        if model:
            raise
        raise RegardError(
            f"the translator that ships with regard cannot be read: {error}; say another with "
            "--model, such as `regard train` makes"
        ) from error
    if head is not None and translator.head is None:
        raise RegardError(f"--head {head}: {no_attention(translator.checkpoint)}")
    options: dict[str, Any] = {"reading": reading, "end": _ENDS[end]}
    if head is not None:
        options["head"] = head_named(head, heads_of(translator.model.sites), "--head")
    return Translator(translator.checkpoint, **options)


def _check_attention(
    translator: Translator, plot: Path | None, html: Path | None, pharaoh: Path | None
) -> None:
    """Refuse to show attention that the model does not have."""
    if translator.head is not None:
        return
    if pharaoh is not None:
        raise RegardError(f"--pharaoh: {no_attention(translator.checkpoint)}")
    for option, path in (("--plot", plot), ("--html", html)):
        if path is not None and not translator.inside:
            raise RegardError(
                f"{option}: {no_attention(translator.checkpoint)}, nor any inside its encoder"
            )


def _remark_on_a_file(text: str) -> None:
    """Say so if the text is the name of a file."""
    if _is_file(text):
        remark(f"{text} is a file; --file {text} translates its lines")


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # longer than a name can be
        return False


def _lines(file: Path | None) -> Iterator[str]:
    """The lines of a file or of standard input, as they are needed; some may be empty."""
    piped = file is None or str(file) == "-"
    name = "standard input" if piped else str(file)
    return (line for _, line in lines(sys.stdin.buffer if piped else Path(name), name))
