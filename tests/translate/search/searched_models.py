"""Models and batches that the tests of the search share."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from regard.translate.models.build import ModelConfig, build_model, names
from regard.translate.models.contract import (
    DecoderOutput,
    EncoderOutput,
    StepOutput,
    TranslationModel,
)
from regard.translate.search import Hypothesis, SearchOptions, beam_search, beam_search_steps
from regard.translate.tokens import BEGIN, END

NAMES = names()
SIZE = 12
OWN = {"transformer": {"heads": 2, "feed_forward": 16}, "tutorial": {"longest": 9}}


def tiny(name: str, *, size: int = SIZE, seed: int = 0, **options: Any) -> TranslationModel:
    """A small model with weights large enough that hypotheses differ."""
    torch.manual_seed(seed)
    sizes = {"embedding": 8, "hidden": 8, "layers": 2, **OWN.get(name, {}), **options}
    model = build_model(ModelConfig(name, **sizes), SIZE, size).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.8)
    return model


def batch(lengths: tuple[int, ...] = (6, 1, 4), seed: int = 1) -> tuple[Tensor, Tensor]:
    """Sentences of these lengths, `END` among them, padded."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    source = torch.randint(4, SIZE, mask.shape, generator=generator)
    source[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = END
    return source * mask, mask


def told(
    model: TranslationModel, source: Tensor, mask: Tensor, place: int, tokens: list[int]
) -> tuple[float, dict[str, Tensor]]:
    """Log-probability and weights of one sentence's tokens, by a teacher-forced pass."""
    with torch.no_grad():
        encoded = model.encode(source[place : place + 1], mask[place : place + 1])
        decoded = model.decode(encoded, torch.tensor([[BEGIN, *tokens[:-1]]]), weights=True)
        chances = model.logits(decoded.features)[0].double().log_softmax(1)
    total = chances.gather(1, torch.tensor(tokens)[:, None]).sum()
    return float(total), {site: seen[0] for site, seen in decoded.weights.items()}


def told_all(
    model: TranslationModel, source: Tensor, mask: Tensor, place: int, sequences: list[list[int]]
) -> tuple[list[float], dict[str, Tensor]]:
    """The same for many sequences of one sentence, in one pass; weights are 0 behind an end."""
    longest = max(map(len, sequences))
    padded = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in sequences])
    given = torch.cat([torch.full((len(padded), 1), BEGIN), padded[:, :-1]], dim=1)
    with torch.no_grad():
        encoded = model.encode(source[place : place + 1], mask[place : place + 1])
        encoded = encoded.select(torch.zeros(len(padded), dtype=torch.long))
        decoded = model.decode(encoded, given, weights=True)
        chances = model.logits(decoded.features).double().log_softmax(2)
    said = padded != 0
    totals = (chances.gather(2, padded[..., None])[..., 0] * said).sum(1)
    weights = {site: seen * said[:, None, :, None] for site, seen in decoded.weights.items()}
    return totals.tolist(), weights


def every_sequence(size: int, longest: int, shortest: int = 0) -> list[list[int]]:
    """All that can be said: what ends with END, and what is cut at the longest."""
    words = range(END + 1, size)
    found = []
    for length in range(longest + 1):
        for said in itertools.product(words, repeat=length):
            if shortest <= length < longest:
                found.append([*said, END])
            if length == longest:
                found.append(list(said))
    return found


class Flat(TranslationModel):
    """A model without parameters, whose next token depends on the last alone."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table, self.sites, self.rows = table, {}, []

    def encode(self, source: Tensor, mask: Tensor, *, weights: bool = False) -> EncoderOutput:
        return EncoderOutput(mask, ())

    def start(self, encoded: EncoderOutput, beams: int = 1) -> tuple[()]:
        return ()

    def step(
        self, encoded: EncoderOutput, state: Any, tokens: Tensor, *, weights: bool = False
    ) -> StepOutput:
        self.rows.append(len(tokens))
        return StepOutput(self.table[tokens], ())

    def decode(
        self, encoded: EncoderOutput, target: Tensor, *, weights: bool = False, forcing: float = 1.0
    ) -> DecoderOutput:
        return DecoderOutput(self.table[target])

    def logits(self, features: Tensor) -> Tensor:
        return features


def same(first: Hypothesis, second: Hypothesis) -> bool:
    """Equal in tokens, and nearly in all numbers."""
    close = abs(first.score - second.score) < 1e-4
    return close and first.tokens == second.tokens and first.weights.keys() == second.weights.keys()


def search(model, source, mask, *, n_best=1, prefix=None, weights=True, **options):
    """`beam_search`, greedy unless a beam is given."""
    chosen = SearchOptions(**{"beam": 1, **options})
    arguments = {"n_best": n_best, "prefix": prefix, "weights": weights}
    return beam_search(model, source, mask, chosen, **arguments)


def search_steps(model, source, mask, *, prefix=None, weights=True, **options):
    """`beam_search_steps`, greedy unless a beam is given."""
    chosen = SearchOptions(**{"beam": 1, **options})
    return beam_search_steps(model, source, mask, chosen, prefix=prefix, weights=weights)
