"""One small model, with and without a layer that uses the attention's weights again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import masks
from regard.contract import Attended
from regard.mechanisms import MultiHead, Rotary
from regard.reuse import Concatenation, GatedFlow, OffsetBins, ProjectedRows, WeightedAggregation

WIDTH, HEADS = 64, 4


class Beside(nn.Module):
    """Concatenation, and a projection back to the width of the model."""

    def __init__(self, code: nn.Module) -> None:
        super().__init__()
        self.beside = Concatenation(WIDTH, code)
        self.back = nn.Linear(self.beside.output_width, WIDTH)

    def forward(self, x: Tensor, attended: Attended) -> Tensor:
        projected: Tensor = self.back(self.beside(x, attended))
        return projected


class Layer(nn.Module):
    """Attention, what comes of its weights, a feed-forward part; norms before each.

    Args:
        hidden: width inside the feed-forward part.
        again: a layer of `regard.reuse` whose answer is added, or None.
    """

    def __init__(self, hidden: int, again: nn.Module | None) -> None:
        super().__init__()
        self.attend = MultiHead(WIDTH, HEADS, position=Rotary())
        self.again = again
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(WIDTH, hidden), nn.GELU(), nn.Linear(hidden, WIDTH))

    def forward(self, x: Tensor, mask: masks.Mask) -> Tensor:
        attended = self.attend(self.norms[0](x), mask=mask, weights=self.again is not None)
        x = x + attended.output
        if isinstance(self.again, GatedFlow):
            x = self.again(x, attended)
        elif self.again is not None:
            x = x + self.again(self.norms[1](x), attended)
        fed: Tensor = x + self.feed(self.norms[2](x))
        return fed


class Tagger(nn.Module):
    """Embeddings, layers, and scores of classes at each position."""

    def __init__(self, vocabulary: int, classes: int, layers: list[Layer]) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.layers = nn.ModuleList(layers)
        self.norm, self.read = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """(batch, position, 2) to scores (batch, position, class)."""
        x, mask = self.embed(tokens).sum(2), masks.padding(keep)
        for layer in self.layers:
            x = layer(x, mask)
        scores: Tensor = self.read(self.norm(x))
        return scores


REUSE = {
    "aggregation": lambda: WeightedAggregation(WIDTH, HEADS),
    "gate": lambda: GatedFlow(WIDTH, HEADS),
    "concatenation, rows": lambda: Beside(ProjectedRows(HEADS, 32)),
    "concatenation, offsets": lambda: Beside(OffsetBins(HEADS, 32)),
}
HIDDEN = 128
VARIANTS = ("plain", *(f"{name}" for name in REUSE), *(f"equal to {name}" for name in REUSE))
VARIANTS = (*VARIANTS, "two layers")


def build(variant: str, vocabulary: int, classes: int) -> Tagger:
    """The model of a variant; "equal to X" has the parameters of X in its feed-forward part."""
    if variant in REUSE:
        return Tagger(vocabulary, classes, [Layer(HIDDEN, REUSE[variant]())])
    count = 2 if variant == "two layers" else 1
    hidden = HIDDEN
    if variant.startswith("equal to "):
        with torch.random.fork_rng(devices=[]):
            more = parameters(REUSE[variant.removeprefix("equal to ")]())
        hidden += round(more / (2 * WIDTH + 1))
    elif variant not in ("plain", "two layers"):
        raise ValueError(f"variant {variant!r}, expected one of {', '.join(VARIANTS)}")
    return Tagger(vocabulary, classes, [Layer(hidden, None) for _ in range(count)])


def parameters(module: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in module.parameters())
