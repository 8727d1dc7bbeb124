"""`regard look`: what a word attends to in a pretrained attention layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from regard.cli.minilm import MiniLM
from regard.errors import RegardError
from regard.plots import Heatmap
from regard.plots.specs import checked_path
from regard.types import Weights


def look(
    text: Annotated[str, typer.Argument(help="The sentence to look at.")] = "see that girl run",
    word: Annotated[
        str | None,
        typer.Option(
            help="The word whose attention the table shows (its first place); else the second word."
        ),
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Draw this head (from 0); the mean of all when not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the heatmap goes (png, svg or pdf).")] = Path(
        "look.png"
    ),
) -> None:
    """Show what a word attends to in the first layer of a pretrained encoder (MiniLM)."""
    checked_path(out)
    model = MiniLM()
    tokens, ids = model.tokens(text)
    if len(tokens) < 3:
        raise RegardError(f"there is no word in {text!r}")
    place = _place(tokens, word)
    layer = model.attention(0)
    with torch.inference_mode():
        attended = layer(model.embed(ids), weights=True)
    assert attended.weights is not None
    if head is not None and not 0 <= head < layer.n_heads:
        raise RegardError(f"--head {head} is not from 0 to {layer.n_heads - 1}")
    console = Console()
    console.print(_table(tokens, place, attended.weights))
    drawn = attended.weights[0].mean(0) if head is None else attended.weights[0, head]
    which = f"mean of {layer.n_heads} heads" if head is None else f"head {head}"
    title = f"MiniLM, layer 0, {which}"
    path = Heatmap(drawn, tuple(tokens), tuple(tokens), title).save(out)
    console.print(f"heatmap of every word: [bold]{path}[/bold]")


def _place(tokens: list[str], word: str | None) -> int:
    """Where the word is; the second real one, or the only one, when none is named."""
    if word is None:
        return min(2, len(tokens) - 2)
    found = [i for i, token in enumerate(tokens) if token.lower() == word.lower()]
    if not found:
        raise RegardError(f"--word {word!r} is not among the tokens: {' '.join(tokens)}")
    return found[0]


def _table(tokens: list[str], place: int, weights: Weights) -> Table:
    """A row for each token: its share of the word's attention, head by head."""
    row = weights[0, :, place]  # (head, key)
    table = Table(title=f"what “{tokens[place]}” attends to, in percent: MiniLM, layer 0")
    table.add_column("token", style="bold", no_wrap=True, overflow="fold")
    table.add_column("mean", justify="right", style="bold")
    for number in range(row.shape[0]):
        table.add_column(f"h{number}", justify="right")
    for index, token in enumerate(tokens):
        shares = [f"{100 * share:.0f}" for share in row[:, index].tolist()]
        table.add_row(token, f"{100 * float(row[:, index].mean()):.0f}", *shares)
    return table
