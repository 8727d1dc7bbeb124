"""`regard export`: a trained Transformer in the format of another package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.option_checks import check_choice
from regard.translate.checkpoint import load_checkpoint
from regard.translate.exporting import FORMATS
from regard.translate.exporting import export as export_checkpoint

_LOADED_BY = {
    "ctranslate2": 'ctranslate2.Translator("{0}"), with the tokens of source.spm or words',
    "marian": 'MarianMTModel.from_pretrained("{0}") and MarianTokenizer.from_pretrained("{0}")',
}


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint of `regard train`, of a Transformer.")
    ],
    format: Annotated[
        str,
        typer.Option(
            metavar="|".join(FORMATS),
            help="Format: of CTranslate2, or of the Marian models of transformers.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, new or empty.")],
) -> None:
    """Export a Transformer to CTranslate2 or to transformers' Marian format.

    The exported model gives the same tokens in greedy and beam search. What a format does not have
    (recurrent networks; in Marian also norms before the sub-layers, whole words, lower-casing) is
    refused.
    """
    check_choice("--format", format, list(FORMATS))
    export_checkpoint(load_checkpoint(checkpoint), out, format)
    print(f"{out}: {_LOADED_BY[format].format(out)}")
