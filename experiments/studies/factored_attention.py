"""Attention by position alone learns the couplings of a Potts model, unless a softmax forbids it.

L sites of C colours with probability ∝ exp Σ_{i<j} J_ij s_iᵀ U s_j. One layer that predicts each
site from the others, logits_i = Σ_{j≠i} A_ij V s_j, has in its cross-entropy the pseudo-likelihood
of the couplings J_ij U, if A depends on positions only (Rende et al. 2024, "Mapping of attention
mechanisms to a generalized Potts model"). Couplings have both signs; a softmax over j makes all
A_ij positive, so that one V serves the pairs of one sign alone. For normal couplings what is left
then correlates with all of them by ½ / √(½ − 1/2π) = 0.86.


    python experiments/studies/factored_attention.py [--quick] [--picture FILE]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main, signed_map
from torch import Tensor, nn
from torch.nn import functional as F

from regard.recipe import Given

SITES, COLOURS = 10, 5
SAMPLES = (300, 3_000, 20_000)
HELD_OUT = 10_000
SWEEPS = 100
#: what a prototype of this study gave, with a Potts model of its own
CORRELATIONS = {300: (0.92, 0.08), 3_000: (0.991, 0.02), 20_000: (0.9986, 0.005)}


@dataclass(frozen=True)
class Potts:
    """Couplings J, (site, site), symmetric with a zero diagonal, and U, (colour, colour)."""

    sites: Tensor
    colours: Tensor

    @classmethod
    def random(cls, generator: torch.Generator) -> Potts:
        sites = torch.randn(SITES, SITES, generator=generator).triu(1)
        colours = torch.randn(COLOURS, COLOURS, generator=generator)
        return cls((sites + sites.T) * 0.3, zero_sum((colours + colours.T) / 2**0.5))

    def logits(self, colours_of: Tensor) -> Tensor:
        """Of each colour at each site, given all other sites: (sample, site, colour)."""
        return self.sites @ self.colours[colours_of]

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Independent chains of Gibbs sampling: (sample, site)."""
        colours_of = torch.randint(COLOURS, (count, SITES), generator=generator)
        for _ in range(SWEEPS):
            for site in range(SITES):
                logits = (self.sites[site] @ self.colours[colours_of]).softmax(-1)
                colours_of[:, site] = torch.multinomial(logits, 1, generator=generator)[:, 0]
        return colours_of


class FactoredAttention(nn.Module):
    """logits_i = Σ_{j≠i} A_ij V s_j, with A free, or a softmax over the other sites."""

    def __init__(self, softmaxed: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.softmaxed = softmaxed
        self.scores = nn.Parameter(0.1 * torch.randn(SITES, SITES, generator=generator))
        self.values = nn.Parameter(0.1 * torch.randn(COLOURS, COLOURS, generator=generator))

    def weights(self) -> Tensor:
        """A, (site, site), with a zero diagonal."""
        itself = torch.eye(SITES, dtype=torch.bool)
        if self.softmaxed:
            return self.scores.masked_fill(itself, -torch.inf).softmax(-1)
        return self.scores.masked_fill(itself, 0.0)

    def forward(self, colours_of: Tensor) -> Tensor:
        logits: Tensor = self.weights() @ self.values[colours_of]
        return logits  # (sample, site, colour)


def zero_sum(coupling: Tensor) -> Tensor:
    """The gauge in which rows and columns of colours sum to 0."""
    return (
        coupling
        - coupling.mean(-1, keepdim=True)
        - coupling.mean(-2, keepdim=True)
        + coupling.mean((-2, -1), keepdim=True)
    )


def cross_entropy(logits: Tensor, colours_of: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), colours_of.flatten())


def fit(samples: Tensor, softmaxed: bool, seed: int) -> FactoredAttention:
    """The layer at the minimum of its cross-entropy on the samples."""
    model = FactoredAttention(softmaxed, torch.Generator().manual_seed(seed))
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=100, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(model(samples), samples)
        loss.backward()
        return loss

    optimiser.step(closure)
    return model


def agreement(model: FactoredAttention, truth: Potts) -> float:
    """Correlation of the couplings, in the zero-sum gauge, over pairs of sites and colours."""
    fitted = model.weights()[:, :, None, None] * zero_sum(model.values.T)
    fitted = (fitted + fitted.permute(1, 0, 3, 2)) / 2  # what i says of j, and j of i
    coupling = truth.sites[:, :, None, None] * truth.colours
    pairs = torch.ones(SITES, SITES).triu(1) > 0
    return torch.corrcoef(torch.stack([fitted[pairs].flatten(), coupling[pairs].flatten()]))[
        0, 1
    ].item()


@dataclass(frozen=True)
class Shown:
    """The couplings of sites, and the attention that learned them, with and without softmax."""

    truth: Tensor
    free: Given
    softmaxed: Given


def study(quick: bool, seed: int) -> Outcome:
    generator = torch.Generator().manual_seed(seed)
    truth = Potts.random(generator)
    samples = truth.sample(max(SAMPLES) + HELD_OUT, generator)
    samples, held_out = samples[: max(SAMPLES)], samples[max(SAMPLES) :]
    least = cross_entropy(truth.logits(held_out), held_out).item()
    figures = []
    for count in SAMPLES:
        model = fit(samples[:count], False, seed)
        expected, tolerance = CORRELATIONS[count]
        figures.append(
            Figure(
                f"couplings, {count:,} samples: correlation",
                expected,
                agreement(model, truth),
                tolerance,
                "prototype",
            )
        )
    with torch.no_grad():
        loss = cross_entropy(model(held_out), held_out).item()
    figures.append(
        Figure("cross-entropy above the true model's", 0.0, loss - least, 0.003, "exact couplings")
    )
    softmaxed = fit(samples, True, seed)
    with torch.no_grad():
        loss = cross_entropy(softmaxed(held_out), held_out).item()
    figures += [
        Figure("the same, softmaxed", 0.03, loss - least, 0.0, "ten times as much", "at least"),
        Figure(
            "couplings, softmaxed: correlation",
            0.86,
            agreement(softmaxed, truth),
            0.05,
            "one sign of J",
            "at most",
        ),
    ]
    sign = torch.sign((zero_sum(model.values.T) * truth.colours).sum())  # A and V share a sign
    shown = Shown(
        truth.sites,
        Given((sign * model.weights()).detach()[None, None], of="signed"),
        Given(softmaxed.weights().detach()[None, None]),
    )
    return Outcome(figures, shown)


def draw(outcome: Outcome, figure: Any) -> None:
    """Couplings of sites beside the attention that was learned."""
    shown = outcome.shown
    maps = {
        "couplings J": shown.truth,
        "attention A, free": shown.free.weights()[0, 0],
        "attention A, softmaxed": shown.softmaxed.weights()[0, 0],
    }
    for axis, (title, values) in zip(figure.subplots(1, 3), maps.items()):
        signed_map(figure, axis, values)
        axis.set(title=title, xlabel="site j", ylabel="site i")


if __name__ == "__main__":
    main(__doc__, study, draw)
