"""Translators that know a few sentences more or less by heart, trained in a second or two."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from regard.translate.checkpoint import Checkpoint, save_checkpoint
from regard.translate.config import Config
from regard.translate.data import padded
from regard.translate.models.build import ModelConfig, build_model
from regard.translate.tokens import BEGIN, END
from regard.translate.translator import Translator
from regard.translate.vocabulary import PieceVocabulary

PAIRS = {
    "I love you very much.": "Je t'aime énormément.",
    "the little cat is sleeping": "le petit chat dort",
    "we don't want to sleep tonight": "nous ne voulons pas dormir cette nuit",
    "the unbelievable story": "l'incroyable histoire",
    "I don't love the cat": "je n'aime pas le chat",
}
LAYERS = {"bahdanau": 1, "transformer": 2, "none": 1, "encoder-dot": 1}
LOVE = "I love you very much."
LONG = "we don't want to sleep tonight"


@functools.cache
def translator(name: str = "bahdanau") -> Translator:
    """A model of this name that has learned `PAIRS`."""
    return Translator(_checkpoint(name))


def silent_translator(name: str) -> Translator:
    """One that ends before it has said a word."""
    learned = _checkpoint(name)
    model = copy.deepcopy(learned.model)
    model.embeddings.bias.data[END] = 1e4
    return Translator(replace(learned, model=model))


def saved_translator(path: Path, name: str = "bahdanau") -> Path:
    """Where a checkpoint of it was written."""
    save_checkpoint(path, _checkpoint(name))
    return path


@functools.cache
def _checkpoint(name: str) -> Checkpoint:
    source = PieceVocabulary.train([*PAIRS] * 4, size=340)
    target = PieceVocabulary.train([*PAIRS.values()] * 4, size=340)
    heads = {"heads": 2} if name == "transformer" else {}
    sizes = {"embedding": 32, "hidden": 32, "layers": LAYERS[name], **heads}
    config = Config(model=ModelConfig(name=name, dropout=0.0, **sizes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model(config.model, len(source), len(target))
        _learn(
            model,
            [[*source.encode(text), END] for text in PAIRS],
            [[*target.encode(text), END] for text in PAIRS.values()],
        )
    return Checkpoint(config, source, target, model.eval())


def _learn(model, sources, targets, steps: int = 60) -> None:
    source, mask = padded(sources)
    said, chosen = padded(targets)
    given = torch.cat([torch.full_like(said[:, :1], BEGIN), said[:, :-1]], 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(source, mask, given, chosen), said[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
