"""`regard look`: what a word attends to, in any model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import torch
import typer
from jaxtyping import Float
from rich.console import Console
from rich.table import Table
from torch import Tensor

from regard.aggregate import Words
from regard.cli.subject import EXAMPLES, PACKAGED, subject
from regard.errors import RegardError
from regard.plots import Heatmap
from regard.plots.specs import checked_path
from regard.record import Record
from regard.types import Weights

Maps = Float[Tensor, "column word word"]
_COLUMNS = 10  # layers of numbers that fit a terminal


def look(
    text: Annotated[
        str | None, typer.Argument(help="The text to look at; the model's own example if none.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(PACKAGED)}; or a folder that transformers saved; or "
            "module:function, which returns a model and its inputs (and tokens, if it likes)."
        ),
    ] = "minilm",
    layer: Annotated[
        int | None, typer.Option(help="Look at this layer (from 0), head by head; else all.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Look at this head (from 0); the mean of all when not given.")
    ] = None,
    word: Annotated[
        str | None, typer.Option(help="The word whose attention the table shows (its first place).")
    ] = None,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="Show pieces of words as the model sees them.")
    ] = False,
    out: Annotated[
        Path, typer.Option(help="Where the heatmap of every word goes (png, svg or pdf).")
    ] = Path("look.png"),
) -> None:
    """Capture a model's attention and show what a word attends to, with a heatmap of all words."""
    checked_path(out)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded, nor looked for
    console = Console()
    with console.status(f"loading {model}"):
        what = subject(model, text)
    with console.status(f"running {what.title}"):
        records = what.records(what.trace())
    if not records:
        raise RegardError(f"{what.title}: no attention over all words was captured")
    weights, names = _in_words(_stacked(records), what.words, pieces)
    maps, columns, which = _chosen(weights, layer, head)
    if word is None and text is None and not pieces:
        word = EXAMPLES.get(model, (None, None))[1]
    place = _place(names, word)
    console.print(_table(names, place, maps, columns, f"{what.title}, {which}"))
    drawn = Heatmap(maps.mean(0), names, names, f"{what.title}, {which}").save(out)
    console.print(f"heatmap of every word: [bold]{drawn}[/bold]")


def _stacked(records: list[Record]) -> Weights:
    """(layer, head, query, key) of the first example; every layer has as many heads."""
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
    """(column, query, key): heads of one layer, or layers; what the columns are called."""
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


def _place(names: list[str], word: str | None) -> int:
    """Where the word is; the second real one, or the only one, when none is named."""
    if word is None:
        return max(0, min(2, len(names) - 2))
    found = [i for i, name in enumerate(names) if name.lower() == word.lower()]
    if not found:
        raise RegardError(f"--word {word!r} is not among the words: {' '.join(names)}")
    return found[0]


def _table(names: list[str], place: int, weights: Maps, columns: list[str], title: str) -> Table:
    """A row for each word: its share of the chosen word's attention, column by column."""
    row = weights[:, place]  # (column, key)
    some = list(range(len(columns)))
    if len(some) > 12:  # evenly over all, the first and the last among them
        some = [round(i * (len(columns) - 1) / (_COLUMNS - 1)) for i in range(_COLUMNS)]
        title += "; some layers shown, --layer picks one"
    table = Table(title=f"what “{names[place]}” attends to, in percent: {title}")
    table.add_column("word", style="bold", no_wrap=True, overflow="fold")
    if len(some) > 1:
        table.add_column("mean", justify="right", style="bold", min_width=4)
    for number in some:
        table.add_column(columns[number], justify="right", min_width=len(columns[number]))
    for index, name in enumerate(names):
        shares = [f"{100 * float(row[number, index]):.0f}" for number in some]
        mean = [f"{100 * float(row[:, index].mean()):.0f}"] if len(some) > 1 else []
        table.add_row(name, *mean, *shares)
    return table
