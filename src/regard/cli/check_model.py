"""`regard check-model`: is a trained translator sound, and what do its weights mean?"""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from regard.translate.checks import Verdict, check_model

_STYLES = {True: "bold green", False: "bold red", None: "bold yellow"}
_LOGITS = "a logit is the model's number for a word; the word with the highest logit comes next"


def check_model_command(
    checkpoint: Annotated[
        Path,
        typer.Argument(help="A checkpoint of `regard train`, or english-french or french-english."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random test sentences.")] = 0,
) -> None:
    """Test that a translator is causal, ignores padding, and uses the source.

    Each verdict is explained. The exit code is 1 if a check fails.
    """
    from regard.translate.checkpoint import load_checkpoint

    loaded = load_checkpoint(checkpoint)
    verdicts = check_model(loaded.model, len(loaded.source), seed=seed)
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in verdicts], indent=2))
    else:
        _show(Console(), verdicts)
    if any(verdict.passed is False for verdict in verdicts):
        raise typer.Exit(1)


def _show(console: Console, verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        title = Text.assemble((verdict.word, _STYLES[verdict.passed]), f": {verdict.name}")
        console.print(Text.assemble(title, (f" ({verdict.wanted})", "dim")), soft_wrap=True)
        why = textwrap.indent(textwrap.fill(verdict.why, console.width - 2), "  ")
        console.print(Text(why), soft_wrap=True)
    console.print(Text(textwrap.fill(_LOGITS, console.width), "dim"), soft_wrap=True)
