"""A transformer asked for greatest common divisors learns the divisors of its base, and no others.

Operands are uniform up to 10⁴, written in base 10. Charton 2023, "Learning the greatest common
divisor: explaining transformer predictions", finds that a model learns a list D of products of
divisors of the base, which the last digits tell, and answers with the largest member of D that
divides both operands. For base 10 and a short training D = {1, 2, 4, 5, 10, 20}. So errors are
deterministic: all pairs with a divisor of 3 are answered with 1, of 6 with 2. And the accuracy is
the share of pairs whose divisor is in D, (6/π²) Σ_D k⁻².

    python experiments/studies/common_divisors.py [--quick] [--picture FILE]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from study import Figure, Outcome, main
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.cli.packaged.studies.divisors import (
    BASE,
    DIGITS,
    LARGEST,
    DivisorModel,
    digits_of,
)

BATCH = 256
TESTED = 30  #: divisors that are tested one by one
PAIRS = 200  #: of each divisor
LEARNED = (1, 2, 4, 5, 10, 20)


def pairs(count: int, generator: torch.Generator) -> Tensor:
    """Operands, uniform: (pair, 2)."""
    return torch.randint(1, BASE**DIGITS, (count, 2), generator=generator)


def divisor(numbers: Tensor) -> Tensor:
    """The class of each pair: its greatest common divisor, or 0 where that is too large."""
    divisors = torch.gcd(numbers[:, 0], numbers[:, 1])
    return torch.where(divisors > LARGEST, 0, divisors)


def pairs_of(divided: int, generator: torch.Generator) -> Tensor:
    """Pairs with this greatest common divisor: (pair, 2)."""
    most = (BASE**DIGITS - 1) // divided
    parts = torch.randint(1, most + 1, (4 * PAIRS, 2), generator=generator)
    return parts[torch.gcd(parts[:, 0], parts[:, 1]) == 1][:PAIRS] * divided


def train(steps: int, seed: int) -> tuple[DivisorModel, dict[int, float]]:
    """A model, and by step the share of right answers in training."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = DivisorModel()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps, pct_start=0.1)
    right: list[float] = []
    shares = {}
    for step in range(1, steps + 1):
        numbers = pairs(BATCH, generator)
        answers = divisor(numbers)
        scores = model(digits_of(numbers))
        loss = F.cross_entropy(scores, answers)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        right.append((scores.argmax(-1) == answers).float().mean().item())
        if step % 25 == 0:
            shares[step] = sum(right) / len(right)
            right.clear()
    return model.eval(), shares


def expected_answer(divided: int, learned: tuple[int, ...]) -> int:
    """The largest learned number that divides it."""
    return max(k for k in learned if divided % k == 0)


def predicted_accuracy(learned: tuple[int, ...]) -> float:
    return 6 / math.pi**2 * sum(k**-2 for k in learned)


@dataclass(frozen=True)
class Shown:
    """Accuracy by step, the shares of answers to each divisor, and weights from the answer."""

    shares: dict[int, float]
    answers: Tensor  #: (divisor − 1, answer), shares
    weights: Tensor  #: (layer and head, position)


@torch.no_grad()
def study(quick: bool, seed: int) -> Outcome:
    with torch.enable_grad():
        model, shares = train(1000 if quick else 1500, seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    answers = torch.zeros(TESTED, LARGEST + 1)
    for divided in range(1, TESTED + 1):
        classes = model(digits_of(pairs_of(divided, generator))).argmax(-1)
        answers[divided - 1] = classes.bincount(minlength=LARGEST + 1) / len(classes)
    usual = answers.argmax(1)
    learned = tuple(k for k in range(1, TESTED + 1) if usual[k - 1] == k)
    as_expected = [answers[k - 1, expected_answer(k, LEARNED)].item() for k in range(1, TESTED + 1)]
    numbers = pairs(20_000, generator)
    with regard.capture(model) as trace:
        model(digits_of(numbers[:500]))
    weights = torch.cat([record.weights()[:, :, 0].mean(0) for record in trace])
    right = (model(digits_of(numbers)).argmax(-1) == divisor(numbers)).float().mean().item()
    figures = [
        Figure("accuracy", predicted_accuracy(LEARNED), right, 0.01, "(6/π²) Σ k⁻² over D"),
        Figure(
            "accuracy, by the answers that it gives",
            predicted_accuracy(learned),
            right,
            0.01,
            "(6/π²) Σ k⁻² over these",
        ),
        Figure(
            "members of D among its answers",
            len(LEARNED),
            len(set(learned) & set(LEARNED)),
            0.0,
            f"D = {', '.join(map(str, LEARNED))}",
        ),
        Figure("other numbers among its answers", 0, len(set(learned) - set(LEARNED)), 0.0, "none"),
        Figure(
            "answers as expected, divisor with the fewest", 1.0, min(as_expected), 0.1, "Charton"
        ),
        Figure("divisor 3 answered with 1", 1.0, answers[2, 1].item(), 0.02, "Charton"),
        Figure("divisor 6 answered with 2", 1.0, answers[5, 2].item(), 0.02, "Charton"),
    ]
    return Outcome(figures, Shown(shares, answers, weights), model)


def draw(outcome: Outcome, figure: Any) -> None:
    """Accuracy over steps, answers to each divisor, and where the answer looks."""
    shown = outcome.shown
    curve, answers, weights = figure.subplots(1, 3, width_ratios=[1, 1.3, 1])
    curve.plot(list(shown.shares), list(shown.shares.values()), color="C0")
    expected = 0.0
    for k in LEARNED:
        expected += 6 / math.pi**2 / k**2
        curve.axhline(expected, color="0.6", linewidth=0.6, linestyle=":", zorder=0)
        if k <= 5:  # the lines of 10 and 20 are closer to that of 5 than letters are high
            curve.annotate(
                str(k) if k < 5 else "5, 10, 20",
                (1, expected),
                xycoords=("axes fraction", "data"),
                xytext=(2, 0),
                textcoords="offset points",
                fontsize=6,
                va="center",
            )
    curve.set(xlabel="step", ylabel="right answers", ylim=(0.55, 0.86), xlim=(0, None))
    curve.set_title("dotted: once it answers with", fontsize=8)
    shares = shown.answers[:, 1 : TESTED + 1]
    image = answers.imshow(shares.T.numpy(), cmap="viridis", origin="lower", vmin=0, vmax=1,
                           extent=(0.5, TESTED + 0.5, 0.5, TESTED + 0.5))  # fmt: skip
    answers.set(xlabel="true divisor", ylabel="answer", xticks=range(5, TESTED + 1, 5))
    answers.set_yticks([1, 5, 10, 20])
    answers.set_yticks([2, 4], minor=True)
    answers.spines[:].set_visible(False)
    figure.colorbar(image, ax=answers, label="share", shrink=0.8)
    image = weights.imshow(shown.weights.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    figure.colorbar(image, ax=weights, label="weight", shrink=0.8)
    digits = ["=", *(operand + power for operand in "ab" for power in "₃₂₁₀")]
    weights.set_xticks(range(len(digits)), digits, fontsize=7)
    heads = len(shown.weights) // 2
    weights.set_yticks(range(2 * heads), [f"{n // heads}.{n % heads}" for n in range(2 * heads)])
    weights.set(xlabel="digit that = looks at", ylabel="layer.head")
    weights.spines[:].set_visible(False)


if __name__ == "__main__":
    main(__doc__, study, draw)
