"""From a convolution to attention in three steps, on a task that needs partners, not neighbours.

1. A convolution: each position sums what it makes of its neighbours, y_i = Σ_d W_d x_{i+d}.
2. Over all pairs, by a small network of both: y_i = Σ_j f(x_i, x_j). Every pair costs a network.
3. Linear in what is fetched, and weighted by a softmax of a bilinear score:
   y_i = Σ_j softmax_j(x_iᵀ M x_j) W x_j. That is attention: with M = W_Qᵀ W_K / √d it equals
   `DotProduct` between projections.

The task: sixteen positions carry a name, the name of a partner and a digit, and each position has
to tell its partner's digit. A convolution sees the partner only if it stands nearby.

    python experiments/studies/pairwise_convolution.py [--quick] [--picture FILE]
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.cli.packaged.studies.partners import (
    DIGITS,
    POSITIONS,
    WIDTH,
    Embedding,
    PartnerModel,
    WeightedPairs,
)
from regard.mechanisms import DotProduct

REACH = 2  # neighbours on either side
HIDDEN = 64  # units of the network of a pair
BATCH = 64


class Convolution(nn.Module):
    """y_i = Σ_{|d| ≤ reach} W_d x_{i+d}, with a hidden layer, as a pair has one."""

    def __init__(self) -> None:
        super().__init__()
        self.over_neighbours = nn.Conv1d(WIDTH, HIDDEN, 2 * REACH + 1, padding=REACH)
        self.finish = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, width) in and out."""
        y: Tensor = self.finish(self.over_neighbours(x.mT).mT.relu())
        return y


class AllPairs(nn.Module):
    """y_i = Σ_j f(x_i, x_j), f a network with one hidden layer of the pair."""

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_key = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.finish = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, position, width) in and out."""
        pairs = self.of_query(x)[:, :, None] + self.of_key(x)[:, None]  # W [x_i; x_j] of all pairs
        y: Tensor = self.finish(pairs.relu()).sum(2)
        return y


#: Multiplications of all pairs: both parts of W [x_i; x_j], then a second layer for each pair.
OF_ALL_PAIRS = POSITIONS * 2 * WIDTH * HIDDEN + POSITIONS**2 * HIDDEN * WIDTH
#: Those of weighted pairs: M x and W x, then scores and sums.
OF_WEIGHTED_PAIRS = POSITIONS * 2 * WIDTH**2 + 2 * POSITIONS**2 * WIDTH

STEPS = {"convolution": Convolution, "all pairs": AllPairs, "weighted pairs": WeightedPairs}


def tasks(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Names, partners and digits (sequence, position, 3), and the partners' digits."""
    names = torch.rand(count, POSITIONS, generator=generator).argsort(1)
    partners = torch.randint(POSITIONS, (count, POSITIONS), generator=generator)
    digits = torch.randint(DIGITS, (count, POSITIONS), generator=generator)
    inputs = torch.stack([names, names.gather(1, partners), digits], -1)
    return inputs, digits.gather(1, partners)


@dataclass(frozen=True)
class Training:
    """A model, its accuracy by step, and the seconds of a step."""

    model: PartnerModel
    accuracies: dict[int, float]
    seconds: float

    @property
    def final(self) -> float:
        return list(self.accuracies.values())[-1]


def accuracy(model: PartnerModel, seed: int) -> float:
    inputs, answers = tasks(512, torch.Generator().manual_seed(1000 + seed))
    with torch.no_grad():
        return (model(inputs).argmax(-1) == answers).float().mean().item()


def train(mixing: type[nn.Module], steps: int, seed: int) -> Training:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = PartnerModel(Embedding(), mixing())
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    accuracies, spent = {0: accuracy(model, seed)}, 0.0
    for step in range(1, steps + 1):
        inputs, answers = tasks(BATCH, generator)
        began = time.process_time()
        loss = F.cross_entropy(model(inputs).mT, answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        spent += time.process_time() - began
        if step % 50 == 0:
            accuracies[step] = accuracy(model, seed)
    return Training(model, accuracies, spent / steps)


@torch.no_grad()
def distance_from_attention(pairs: WeightedPairs, x: Tensor) -> float:
    """The largest difference to `DotProduct` between projections that have the same product."""
    u, size, v = torch.linalg.svd(pairs.score.double())
    query, key = u * size.sqrt(), v.T * size.sqrt()  # M = query keyᵀ
    x = x.double()
    attended = DotProduct(scale=1.0)(x @ query, x @ key, x @ pairs.fetch.weight.double().T)
    own = (x @ pairs.score.double() @ x.mT).softmax(-1) @ (x @ pairs.fetch.weight.double().T)
    return max(
        (attended.output - own).abs().max().item(),
        (attended.output.float() - pairs(x.float())).abs().max().item() / own.abs().max().item(),
    )


@torch.no_grad()
def multiplications(mixing: nn.Module, x: Tensor) -> int:
    """Of the products of matrices in a forward pass, counted by PyTorch."""
    with FlopCounterMode(display=False) as counter:
        mixing(x)
    return counter.get_total_flops() // 2  # a multiplication and an addition each


@torch.no_grad()
def on_partner(model: PartnerModel, seed: int) -> float:
    """The mean weight that a position gives its partner."""
    inputs, _ = tasks(64, torch.Generator().manual_seed(2000 + seed))
    with regard.capture(model) as trace:
        model(inputs)
    partners = (inputs[:, :, 1, None] == inputs[:, None, :, 0]).float()  # (sequence, query, key)
    return (trace[0].weights()[:, 0] * partners).sum(-1).mean().item()


@dataclass(frozen=True)
class Shown:
    """The training of each step, and an example's weights with its partners."""

    trainings: dict[str, Training]
    weights: Tensor
    partners: Tensor


def study(quick: bool, seed: int) -> Outcome:
    steps = 800 if quick else 1500
    trainings = {name: train(mixing, steps, seed) for name, mixing in STEPS.items()}
    model = trainings["weighted pairs"].model
    inputs, _ = tasks(1, torch.Generator().manual_seed(seed))
    x = model.embed(inputs)
    near = sum(POSITIONS - abs(d) for d in range(-REACH, REACH + 1)) / POSITIONS**2
    figures = [
        Figure(
            "|weighted pairs − DotProduct|",
            0.0,
            distance_from_attention(model.mixing, x),
            1e-6,
            "the same sum",
        ),
        Figure(
            "accuracy, convolution",
            near + (1 - near) / DIGITS,
            trainings["convolution"].final,
            0.02,
            "partners nearby, else luck",
            "at most",
        ),
        Figure(
            "accuracy, all pairs",
            trainings["convolution"].final + 0.1,
            trainings["all pairs"].final,
            0.0,
            "better than a convolution",
            "at least",
        ),
        Figure(
            "accuracy, weighted pairs", 1.0, trainings["weighted pairs"].final, 0.02, "all partners"
        ),
        Figure("weight on the partner", 0.9, on_partner(model, seed), 0.0, "a lookup", "at least"),
        Figure(
            "multiplications, all pairs over weighted",
            OF_ALL_PAIRS / OF_WEIGHTED_PAIRS,
            multiplications(trainings["all pairs"].model.mixing, x)
            / multiplications(model.mixing, x),
            0.0,
            "sizes of the matrices",
        ),
    ]
    with torch.no_grad(), regard.capture(model) as trace:
        model(inputs)
    partners = inputs[0, :, 1, None] == inputs[0, None, :, 0]
    return Outcome(figures, Shown(trainings, trace[0].weights()[0, 0], partners), model)


def draw(outcome: Outcome, figure: Any) -> None:
    """Accuracy over steps, and an example's weights beside its partners."""
    shown = outcome.shown
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    styles = {"convolution": ":", "all pairs": "--", "weighted pairs": "-"}
    for name, training in shown.trainings.items():
        left.plot(
            list(training.accuracies),
            list(training.accuracies.values()),
            styles[name],
            label=f"{name}, {1000 * training.seconds:.1f} ms a step",
        )
    left.set(xlabel="step", ylabel="right digits", ylim=(0, 1.03))
    left.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.06, 0.98))
    image = right.imshow(shown.weights.numpy(), cmap="viridis", vmin=0, vmax=1)
    rows, columns = torch.nonzero(shown.partners, as_tuple=True)
    right.plot(columns, rows, "o", color="white", markersize=3, markeredgecolor="black")
    right.set(xlabel="position that is looked at", ylabel="position", xticks=[], yticks=[])
    right.set_title("weights, and the partners (dots)", fontsize=8)
    right.spines[:].set_visible(False)
    figure.colorbar(image, ax=right, label="weight")


if __name__ == "__main__":
    main(__doc__, study, draw)
