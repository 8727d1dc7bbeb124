"""How faithful an attribution is: how the score changes as its top positions are removed.

Comprehensiveness and sufficiency are those of DeYoung et al., "ERASER", 2020; the deletion and
insertion curves those of Petsiuk et al., "RISE", 2018. r are the positions an attribution ranks
highest, p the score:

| name              | meaning                                      | better  |
|-------------------|----------------------------------------------|---------|
| comprehensiveness | p(x) − p(x without r), mean over the bins    | higher  |
| sufficiency       | p(x) − p(r alone), mean over the bins        | lower   |
| deletion          | area under p while positions go, best first  | lower   |
| insertion         | area under p while positions come, best first| higher  |

Special tokens and padding are never ranked and stay where they are. An example without a
position that may be removed has no value, NaN. Positions with equal attributions are ranked by
chance, since any fixed order would favour some positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import RegardError
from regard.explain.tasks.inputs import Removed
from regard.explain.tasks.replacements import Replacement
from regard.explain.tasks.targets import Scores
from regard.explain.tasks.task import Attribution, Task, checked

#: Shares of the positions, as in ERASER.
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)

Ranks = Int[Tensor, "method example position"]
Counts = Int[Tensor, "example step"]


class Curve(NamedTuple):
    """The score against the share of positions that went, or came, best first."""

    shares: Float[Tensor, "example step"]
    scores: Float[Tensor, "example step"]

    @property
    def area(self) -> Scores:
        """By the trapezoid rule, (example,)."""
        return area(self.shares, self.scores)


def comprehensiveness(
    task: Task,
    attribution: Tensor,
    replacement: Replacement | None = None,
    *,
    bins: float | Sequence[float] = BINS,
    seed: int = 0,
) -> Scores:
    """How much the score falls without the positions ranked highest, (example,).

    Args:
        task: the model, its inputs and the target.
        attribution: (example, position).
        replacement: how positions are removed.
        bins: shares of the removable positions; each is at least one position.
        seed: of the order of positions with equal attributions.
    """
    left = _follow_one(task, attribution, replacement, at_bins(task.removable, bins), False, seed)
    return _nan_without_removable(task, (task.original[:, None] - left).mean(1))


def sufficiency(
    task: Task,
    attribution: Tensor,
    replacement: Replacement | None = None,
    *,
    bins: float | Sequence[float] = BINS,
    seed: int = 0,
) -> Scores:
    """How much the score falls when only the positions ranked highest are left, (example,)."""
    alone = _follow_one(task, attribution, replacement, at_bins(task.removable, bins), True, seed)
    return _nan_without_removable(task, (task.original[:, None] - alone).mean(1))


def deletion(
    task: Task,
    attribution: Tensor,
    replacement: Replacement | None = None,
    *,
    steps: int = 10,
    seed: int = 0,
) -> Curve:
    """The score while positions are removed, the one ranked highest first.

    Args:
        task, attribution, replacement, seed: as for `comprehensiveness`.
        steps: number of equal steps; examples with fewer positions go one by one.
    """
    counts = at_steps(task.removable, steps)
    scores = _follow_one(task, attribution, replacement, counts, False, seed)
    return Curve(shares_of(counts), scores)


def insertion(
    task: Task,
    attribution: Tensor,
    replacement: Replacement | None = None,
    *,
    steps: int = 10,
    seed: int = 0,
) -> Curve:
    """The score while positions come back, the one ranked highest first; from all removed."""
    counts = at_steps(task.removable, steps)
    scores = _follow_one(task, attribution, replacement, counts, True, seed)
    return Curve(shares_of(counts), scores)


def area(
    shares: Float[Tensor, "*method example step"], scores: Float[Tensor, "*method example step"]
) -> Float[Tensor, "*method example"]:
    """The area under curves by the trapezoid rule.

    >>> area(torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[1.0, 0.5, 0.0]]))
    tensor([0.5000])
    """
    return torch.trapezoid(scores, shares, dim=-1)


# -- parts that several attributions share


def ranks(attributions: Tensor, removable: Removed, seed: int) -> Ranks:
    """The place of each position in the order of an attribution, from 0, best first.

    Positions that may not be removed come last. Ties are broken by one seeded order for all
    methods.

    Args:
        attributions: (method, example, position).
        removable: (example, position).
        seed: of the order in ties.
    """
    generator = torch.Generator().manual_seed(seed)
    by_chance = torch.rand(removable.shape, generator=generator).argsort(1).to(removable.device)
    by_chance = by_chance.expand(attributions.shape)
    hidden = attributions.masked_fill(~removable, -torch.inf)
    # an attribution may not be -inf where a position is removable, so those come before the rest
    order = hidden.gather(-1, by_chance).argsort(dim=-1, descending=True, stable=True)
    return by_chance.gather(-1, order).argsort(-1)


def at_bins(removable: Removed, bins: float | Sequence[float]) -> Counts:
    """How many positions each bin has, rounded, and at least one where there is one."""
    shares = [bins] if isinstance(bins, int | float) else list(bins)
    if not shares or not all(0.0 < share <= 1.0 for share in shares):
        raise RegardError(f"bins={tuple(shares)}, expected shares above 0 and up to 1")
    counts = _rounded(removable, shares).clamp_min(1)
    return torch.minimum(counts, removable.sum(1, keepdim=True))


def at_steps(removable: Removed, steps: int) -> Counts:
    """How many positions went at each step, from none to all."""
    if steps < 1:
        raise RegardError(f"steps={steps}, expected at least 1")
    return _rounded(removable, [step / steps for step in range(steps + 1)])


def _rounded(removable: Removed, shares: Sequence[float]) -> Counts:
    """The nearest whole numbers; a half is rounded up."""
    exact = removable.sum(1).double()[:, None] * torch.tensor(shares).double().to(removable.device)
    return (exact + 0.5 + 1e-6).floor().long()


def shares_of(counts: Counts) -> Float[Tensor, "example step"]:
    """Shares of all that may be removed; the last column has all."""
    exact = counts.double().cpu()
    return exact / exact[:, -1:].clamp_min(1.0)


def follow(
    task: Task,
    ranked: Ranks,
    counts: Counts,
    replacement: Replacement | None,
    *,
    alone: Sequence[bool],
    advance: Callable[[float], None] | None = None,
) -> Float[Tensor, "method example step"]:
    """The scores while rankings are followed.

    Args:
        task: the model, its inputs and the target.
        ranked: (method, example, position).
        counts: how many of the positions ranked highest, (example, step).
        replacement: how positions are removed.
        alone: for each step, whether those positions alone are left, or they alone go.
        advance: called with the share of the work that was done.
    """
    top = ranked[:, :, None] < counts[None, :, :, None]  # (method, example, step, position)
    only = torch.tensor(list(alone), device=top.device)[:, None]
    removed = task.removable[None, :, None] & (top ^ only)
    methods, examples, steps, positions = removed.shape
    which = torch.arange(examples)[None, :, None].expand(methods, examples, steps)
    flat = task.scores(removed.reshape(-1, positions), replacement, which.reshape(-1), advance)
    return flat.reshape(methods, examples, steps)


def _follow_one(
    task: Task,
    attribution: Attribution,
    replacement: Replacement | None,
    counts: Counts,
    alone: bool,
    seed: int,
) -> Float[Tensor, "example step"]:
    ranked = ranks(checked(attribution, task, "attribution")[None], task.removable, seed)
    return follow(task, ranked, counts, replacement, alone=[alone] * counts.shape[1])[0]


def _nan_without_removable(task: Task, values: Scores) -> Scores:
    """NaN where nothing could be removed."""
    return values.masked_fill(~task.removable.any(1).cpu(), torch.nan)
