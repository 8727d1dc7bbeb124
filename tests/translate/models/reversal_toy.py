"""The toy that attention solves: say a sequence backwards (10 symbols, lengths 6 to 10)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.translate.models.build import ModelConfig, build_model
from regard.translate.models.contract import TranslationModel
from regard.translate.tokens import BEGIN, END, PAD, UNKNOWN

SYMBOLS = 10
SIZE = UNKNOWN + 1 + SYMBOLS


def sequences(
    count: int, shortest: int, longest: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Sources, what the decoder is given, and what it must say, each (count, longest + 1)."""
    lengths = torch.randint(shortest, longest + 1, (count, 1), generator=generator)
    symbols = torch.randint(UNKNOWN + 1, SIZE, (count, longest + 1), generator=generator)
    places = torch.arange(longest + 1).expand(count, -1)
    source = symbols.masked_fill(places == lengths, END).masked_fill(places > lengths, PAD)
    backwards = symbols.gather(1, (lengths - 1 - places).clamp_min(0))
    says = backwards.masked_fill(places == lengths, END).masked_fill(places > lengths, PAD)
    given = torch.cat([torch.full((count, 1), BEGIN), says[:, :-1]], 1)
    return source, given, says


def trained(
    name: str, *, steps: int = 1200, seed: int = 0, rate: float = 2e-3, **sizes: object
) -> TranslationModel:
    """A model with GRUs of 48 after so many steps of 64 sequences."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    slots = {"longest": 10} if name == "tutorial" else {}
    settings = {"embedding": 32, "hidden": 48, "dropout": 0.0, **slots, **sizes}
    model = build_model(ModelConfig(name, **settings), SIZE, SIZE)  # type: ignore[arg-type]
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        source, given, says = sequences(64, 6, 10, generator)
        chosen = says != PAD
        logits = model(source, source != PAD, given, chosen)
        loss = F.cross_entropy(logits, says[chosen])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: TranslationModel, length: int, count: int = 500) -> float:
    """The share of symbols that are right when the model goes on from what it said itself."""
    source, _, says = sequences(count, length, length, torch.Generator().manual_seed(1))
    encoded = model.encode(source, source != PAD)
    state, tokens = model.start(encoded), torch.full((count,), BEGIN)
    right = 0.0
    for step in range(length):
        stepped = model.step(encoded, state, tokens)
        state, tokens = stepped.state, stepped.logits.argmax(-1)
        right += (tokens == says[:, step]).float().mean().item()
    return right / length
