"""Other weights, the same output: whether a model could have attended elsewhere.

Jain and Wallace, "Attention is not Explanation", 2019: for a model that pools by attention, look
for weights as different as can be from its own that give nearly the same output. Where there are
some, the weights alone do not explain the answer. Wiegreffe and Pinter, "Attention is not not
Explanation", 2019, point out that weights found so are not ones that training would have found:
a large divergence says that the output does not determine the weights, and no more.

    maximise over a'   JS(a, a')   subject to   ½ Σ_c |y_c(a') − y_c(a)| ≤ ε

JS is the Jensen–Shannon divergence in nats, at most ln 2; the bound is a total variation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError, ShapeError
from regard.record import Record

Pooling = Float[Tensor, "example ... key"]
Numbers = Float[Tensor, " example"]
Answer = Callable[[Tensor], Tensor]
_HALVINGS = 20  # of the way back to the model's own weights


@dataclass(frozen=True, eq=False)
class Adversary:
    """The weights found, and how far they are from the model's own.

    Attributes:
        weights: of the same shape as the model's own.
        divergence: Jensen–Shannon, in nats, the mean over an example's rows, (example,).
        change: the total variation of the output, (example,); at most `epsilon`.
        largest: the divergence that could be reached if the output did not matter, (example,).
        epsilon: the change that was allowed.
    """

    weights: Pooling
    divergence: Numbers
    change: Numbers
    largest: Numbers
    epsilon: float

    def __repr__(self) -> str:
        return (
            f"Adversary: {len(self.divergence)} examples, divergence "
            f"{float(self.divergence.mean()):.3f} of {float(self.largest.mean()):.3f} nats in the "
            f"mean, output changed by {float(self.change.max()):.4f} at most "
            f"(epsilon {self.epsilon})"
        )


def adversarial(
    weights: Any,
    answer: Answer,
    *,
    epsilon: float = 0.01,
    restarts: int = 4,
    steps: int = 300,
    rate: float = 0.1,
    allowed: Tensor | None = None,
    seed: int = 0,
) -> Adversary:
    """Look for weights that differ most from the model's own and give nearly the same output.

    >>> import torch
    >>> from regard import explain
    >>> weights = torch.tensor([[0.98, 0.01, 0.01]])
    >>> same = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])  # attention makes no difference
    >>> other = explain.adversarial(weights, lambda weights: (weights @ same).softmax(-1))
    >>> bool(other.divergence > 0.9 * other.largest)
    True

    Args:
        weights: the model's own, (example, key), or with more axes between, as (example, head,
            query, key); or a Record of them.
        answer: from such weights to the model's output as probabilities, (example, class), by
            operations that autograd knows.
        epsilon: how much the output may change, as a total variation from 0 to 1.
        restarts: how many starting points are tried, the first of them the model's weights
            inverted.
        steps: of gradient ascent, from each.
        rate: of the ascent.
        allowed: keys that may be given weight, of the weights' shape; those that have some when
            None.
        seed: of the starting points.
    """
    own = (weights.weights() if isinstance(weights, Record) else weights).detach()
    if own.dim() < 2 or not own.is_floating_point():
        raise ShapeError(f"weights are {tuple(own.shape)}, expected (example, …, key)")
    if not 0.0 <= epsilon <= 1.0:
        raise RegardError(f"epsilon={epsilon}, expected from 0 to 1")
    if restarts < 1 or steps < 1:
        raise RegardError(f"restarts={restarts} and steps={steps}, expected at least 1 of each")
    own = own.to(torch.promote_types(own.dtype, torch.float32))
    keys = own > 0 if allowed is None else allowed.expand(own.shape)
    search = _Search(own, keys, answer, epsilon)
    generator = torch.Generator().manual_seed(seed)
    for start in range(restarts):
        search.ascend(_start(own, start, generator), steps, rate)
    return Adversary(search.best, search.divergence, search.change, _largest(own, keys), epsilon)


def _start(own: Pooling, number: int, generator: torch.Generator) -> Tensor:
    """Logits to begin with."""
    if number == 0:
        return -own.clamp_min(1e-6).log()
    drawn = torch.randn(own.shape, generator=generator).to(own)
    return 3.0 * drawn


class _Search:
    """The best weights so far, example by example."""

    def __init__(self, own: Pooling, keys: Tensor, answer: Answer, epsilon: float) -> None:
        self.own, self.keys, self.answer, self.epsilon = own, keys, answer, epsilon
        with torch.no_grad():
            self.wanted = answer(own).detach()
        _check_shares(self.wanted, len(own))
        self.best = own.clone()
        self.divergence = torch.zeros(len(own), dtype=own.dtype, device=own.device)
        self.change = torch.zeros_like(self.divergence)

    def ascend(self, logits: Tensor, steps: int, rate: float) -> None:
        """Adam on logits, with a growing penalty outside the bound."""
        logits = logits.clone().requires_grad_()
        optimiser = torch.optim.Adam([logits], lr=rate)
        for step in range(steps):
            penalty = 10.0 ** (3.0 * step / steps)
            with torch.enable_grad():
                other = self.softmax(logits)
                divergence, change = self.judge(other)
                loss = penalty * (change - self.epsilon).clamp_min(0.0) - divergence
                (gradient,) = torch.autograd.grad(loss.sum(), logits)
            self.keep(other.detach(), divergence.detach(), change.detach())
            logits.grad = gradient
            optimiser.step()
        self.step_back(self.softmax(logits.detach()))

    def softmax(self, logits: Tensor) -> Pooling:
        """Weights of the keys that may have some; a row without such a key stays 0."""
        never = torch.finfo(logits.dtype).min
        weights = logits.masked_fill(~self.keys, never).softmax(-1)
        return weights * self.keys

    def judge(self, other: Pooling) -> tuple[Numbers, Numbers]:
        """The divergence from the own weights, and the change of the output."""
        divergence = _over_rows(jensen_shannon(self.own, other), self.keys)
        return divergence, (self.answer(other) - self.wanted).abs().flatten(1).sum(1) / 2

    def keep(self, other: Pooling, divergence: Numbers, change: Numbers) -> None:
        better = (change <= self.epsilon) & (divergence > self.divergence)
        self.best = torch.where(_like(better, other), other, self.best)
        self.divergence = torch.where(better, divergence, self.divergence)
        self.change = torch.where(better, change, self.change)

    @torch.no_grad()
    def step_back(self, other: Pooling) -> None:
        """The point nearest to these weights, on the line to them, that is within the bound."""
        inside = torch.zeros_like(self.divergence)  # the share of the other weights
        outside = torch.ones_like(self.divergence)
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            mixed = torch.lerp(self.own, other, _like(middle, other))
            divergence, change = self.judge(mixed)
            self.keep(mixed, divergence, change)
            fits = change <= self.epsilon
            inside = torch.where(fits, middle, inside)
            outside = torch.where(fits, outside, middle)


def jensen_shannon(
    first: Float[Tensor, "*rows key"], second: Float[Tensor, "*rows key"]
) -> Float[Tensor, "*rows"]:
    """The Jensen–Shannon divergence of rows that sum to 1, in nats: from 0 to ln 2.

    >>> jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """
    mean = (_entropy(first) + _entropy(second)) / 2
    return (_entropy((first + second) / 2) - mean).sum(-1).clamp_min(0.0)


def _entropy(shares: Tensor) -> Tensor:
    """−p log p of each; its slope at 0 is infinite, so 0 is cut out of the graph."""
    terms: Tensor = torch.special.entr(shares.clamp_min(torch.finfo(shares.dtype).tiny))
    return terms


def _largest(own: Pooling, keys: Tensor) -> Numbers:
    """All weight on the allowed key that has least: the divergence is convex, so none is larger."""
    least = own.masked_fill(~keys, torch.inf).argmin(-1, keepdim=True)
    corner = torch.zeros_like(own).scatter(-1, least, 1.0) * keys
    return _over_rows(jensen_shannon(own, corner), keys)


def _over_rows(values: Tensor, keys: Tensor) -> Numbers:
    """The mean over an example's rows, of those that may attend to something."""
    alive = keys.any(-1).reshape(len(keys), -1)
    return (values.reshape(len(values), -1) * alive).sum(1) / alive.sum(1).clamp_min(1)


def _like(values: Tensor, other: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (other.dim() - 1))


def _check_shares(shares: Tensor, examples: int) -> None:
    good = shares.dim() == 2 and len(shares) == examples
    if (
        not good
        or bool(((shares.double().sum(1) - 1).abs() > 1e-2).any())
        or bool((shares < 0).any())
    ):
        raise ShapeError(
            f"answer: gives {tuple(shares.shape)}, expected probabilities (example, class), whose "
            "rows are not negative and sum to 1"
        )
