"""`regard look`: what a word attends to, in any model: a table, a heatmap, a picture, a page."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from jaxtyping import Float
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import Tensor

from regard.aggregate import HeadMatch, Words
from regard.cli.models import EXAMPLES, FILES, PACKAGED, look_at, over_words
from regard.cli.packaged import LookResult
from regard.cli.terminal import Ink, heatmap, ink_of, label
from regard.errors import RegardError
from regard.plots import Heatmap
from regard.plots.specs import checked_path
from regard.record import Record, Trace
from regard.types import Weights
from regard.viewer.document import checked_page_path

Maps = Float[Tensor, "column word word"]
_COLUMNS = 10  # layers that fit a terminal
_HEADS = 5  # heads that a ranking shows
_ROWS = 40  # words that fit a terminal


def look(
    text: Annotated[
        str | None, typer.Argument(help="The text (default: an example that suits the model).")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(PACKAGED)}; a folder saved by transformers; or module:function, "
            "which returns a model and its inputs, optionally also the tokens. With --html also "
            f"{', '.join(FILES)}: the text is then the path of a file."
        ),
    ] = "minilm",
    layer: Annotated[
        int | None, typer.Option(help="Show the heads of this layer, from 0 (default: all layers).")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Show this head, from 0 (default: the mean over heads).")
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(help="The word that the table is about (first occurrence)."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Rank the heads by what --word gives this word, and show the best one."),
    ] = None,
    pieces: Annotated[bool, typer.Option("--pieces", help="Show tokens instead of words.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Save the heatmap of all words (png, svg or pdf; default: look.png, unless --html "
            "is given)."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Save a page with the attention of every head (html)."),
    ] = None,
    generate: Annotated[
        int, typer.Option(help="Generate this many tokens, and show their attention too.")
    ] = 0,
) -> None:
    """Capture a model's attention and show what a word attends to, with a heatmap of all words."""
    if to is not None and word is None:
        raise RegardError(f"--to {to!r} needs --word, the word that attends to it")
    if out is None and html is None:
        out = Path("look.png")
    if out is not None:
        checked_path(out)
    if html is not None:
        checked_page_path(html)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    console = Console()
    if model in FILES and html is None:
        raise RegardError(f"--model {model} is shown on a page only: add --html attention.html")
    with console.status(f"running {model}"):
        result = look_at(model, text, generate)
    if result.written is not None:
        console.print(Text.assemble("it went on: ", (label(result.written), "bold")))
    if model not in FILES:
        if word is None and text is None and not pieces and not generate:
            word = EXAMPLES.get(model, (None, None))[1]
        _show(console, result, layer, head, word, to, pieces, out)
    if html is not None:
        with console.status("making the page"):
            result.page().save(html)
        console.print(Text.assemble("page of every head: ", (str(html), "bold")))


def _show(
    console: Console,
    result: LookResult,
    layer: int | None,
    head: int | None,
    word: str | None,
    to: str | None,
    pieces: bool,
    out: Path | None,
) -> None:
    """The table of one word, the heatmap of all words, and its picture."""
    records = over_words(result)
    if not records:
        raise RegardError(f"{result.title}: no attention over all words was captured")
    words = result.words[0] if result.words else None
    ink = ink_of(console)
    weights, names = _in_words(_stacked(records), words, pieces)
    shown_words = Words.each(names) if words is None or pieces else words
    position = _position(shown_words, word, weights.float().mean((0, 1)))
    maps, columns, which = _chosen(weights, layer, head)
    if words is not None and word is not None:
        if to is not None:
            shown_words.without_special().index(to, "--to ")
        chosen = records if layer is None else records[layer : layer + 1]
        ranking = Trace(chosen).find(word, to, words=shown_words)
        matches = [match for match in ranking if head in (None, match.head)]
        if matches:  # a text of one word has no other
            console.print(Text(_in_ink(_sentence(matches[0]), ink), "bold"))
        if to is not None:
            console.print(_ranking_table(matches, ink))
            if layer is None and head is None:
                layer = [record.name for record in records].index(matches[0].name)
                maps, columns, which = _chosen(weights, layer, matches[0].head)
    title = f"{result.title}, {which}"
    every = maps.float().mean(0)
    picture = Heatmap(every, names, names, title)
    console.print(_table(names, position, maps, columns, title, ink))
    console.print(Text("\neach row: what its word attends to, in percent", "italic"))
    console.print(heatmap(every, names, names, width=console.width, ink=ink))
    if out is not None:
        picture.save(out)
        console.print(Text.assemble("heatmap of every word: ", (str(out), "bold")))


def _stacked(records: list[Record]) -> Weights:
    """(layer, head, query, key) of the first example; all layers must have as many heads."""
    heads = {record.shape.heads for record in records}
    if len(heads) > 1:
        raise RegardError(f"layers have different numbers of heads: {sorted(heads)}")
    return torch.cat([record.weights()[:1] for record in records])


def _in_words(weights: Weights, words: Words | None, pieces: bool) -> tuple[Tensor, list[str]]:
    if words is None:
        return weights, [str(index) for index in range(weights.shape[-1])]
    if pieces:
        return weights, words.tokens
    return words.merge(weights), words.names


def _chosen(weights: Weights, layer: int | None, head: int | None) -> tuple[Maps, list[str], str]:
    """(column, query, key): heads of one layer, or layers; and the names of the columns."""
    layers, heads = weights.shape[:2]
    for option, number, size in (("--layer", layer, layers), ("--head", head, heads)):
        if number is not None and not 0 <= number < size:
            raise RegardError(f"{option} {number} is not from 0 to {size - 1}")
    if layer is not None:
        if head is not None:
            return weights[layer, head : head + 1], [f"h{head}"], f"layer {layer}, head {head}"
        columns = [f"h{number}" for number in range(heads)]
        return weights[layer], columns, f"layer {layer}, mean of {heads} heads"
    columns = [f"L{number}" for number in range(layers)]
    if head is not None:
        return weights[:, head], columns, f"head {head}, mean of {layers} layers"
    return weights.mean(1), columns, f"mean of {layers} layers × {heads} heads"


def _position(words: Words, word: str | None, every: Float[Tensor, "word word"]) -> int:
    """The number of the word; by default the second word, or the last one if attention is causal,
    since it sees all others."""
    if word is not None:
        return words.index(word, "--word ")
    causal = not bool(every.triu(1).any())
    return len(words.names) - 1 if causal else max(0, min(2, len(words.names) - 2))


def _table(
    names: list[str], position: int, weights: Maps, columns: list[str], title: str, ink: Ink
) -> Group:
    """A row per word: its share of the chosen word's attention, column by column."""
    row = weights[:, position]  # (column, key)
    numbers = list(range(len(columns)))
    if len(numbers) > 12:  # evenly spaced, with the first and the last
        numbers = [round(i * (len(columns) - 1) / (_COLUMNS - 1)) for i in range(_COLUMNS)]
        title += "; some layers shown, --layer picks one"
    mean = row.float().mean(0)
    shown = sorted(mean.topk(min(_ROWS, len(names))).indices.tolist())
    if len(shown) < len(names):
        title += f"; the {_ROWS} of {len(names)} words that it attends to most"
    title = _in_ink(f"what “{label(names[position])}” attends to, in percent: {title}", ink)
    table = Table(box=box.ASCII if ink == "ascii" else box.HEAVY_HEAD)
    table.add_column("word", style="bold", no_wrap=True, overflow="fold")
    if len(numbers) > 1:
        table.add_column("mean", justify="right", style="bold", min_width=4)
    for number in numbers:
        table.add_column(columns[number], justify="right", min_width=len(columns[number]))
    for index in shown:
        shares = [f"{100 * float(row[number, index]):.0f}" for number in numbers]
        means = [f"{100 * float(mean[index]):.0f}"] if len(numbers) > 1 else []
        table.add_row(Text(label(names[index])), *means, *shares)
    return Group(Text(title, "italic"), table)


def _sentence(match: HeadMatch) -> str:
    """The best head in a sentence, with words that cannot disturb a terminal."""
    return str(replace(match, query=label(match.query), key=label(match.key)))


def _ranking_table(matches: list[HeadMatch], ink: Ink) -> Group:
    """The heads that give the word most."""
    best = matches[0]
    title = _in_ink(f"heads by what “{label(best.query)}” gives “{label(best.key)}”", ink)
    table = Table(box=box.ASCII if ink == "ascii" else box.HEAVY_HEAD)
    for column in ("layer", "head", "percent"):
        table.add_column(column, justify="right")
    for match in matches[:_HEADS]:
        table.add_row(
            match.layer_name.removeprefix("layer "), str(match.head), f"{100 * match.weight:.0f}"
        )
    return Group(Text(title, "italic"), table)


def _in_ink(text: str, ink: Ink) -> str:
    """Our own text, in ASCII if the output is."""
    if ink != "ascii":
        return text
    return text.replace("“", '"').replace("”", '"').replace("×", "x").replace("→", "->")
