"""Measure attributions on a model and data, against random and against gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import RegardError
from regard.explain import baselines
from regard.explain.agreement import pairwise
from regard.explain.evaluation import (
    BASELINES,
    METRICS,
    RANDOM,
    Evaluation,
    Measured,
    mean_agreement,
)
from regard.explain.metrics import BINS, area, at_bins, at_steps, follow, ranks, shares_of
from regard.explain.replacements import Replacement, name_of
from regard.explain.running import Model
from regard.explain.task import Attribution, Task, cut, tasks_of
from regard.progress import progress

_GRADIENTS: dict[str, Callable[[Task], Attribution]] = {
    "gradient norm": baselines.gradient_norm,
    "input × gradient": baselines.input_gradient,
    "integrated gradients": baselines.integrated_gradients,
}
Found = dict[str, list[Tensor]]  # by method, (example, position) for each task


def evaluate(
    model: Model,
    data: Any,
    attributions: Mapping[str, Any],
    target: Any = None,
    *,
    replacements: Replacement | Sequence[Replacement] | None = None,
    bins: float | Sequence[float] = BINS,
    steps: int = 10,
    seeds: int = 5,
    confidence: float = 0.95,
    seed: int = 0,
    show_progress: bool | None = None,
    **task: Any,
) -> Evaluation:
    """How faithful attributions are, beside random ones and those by gradients.

    Args:
        model: a module, or any function that calls one.
        data: inputs as for `Task`, or a list of such batches.
        attributions: by name, a tensor (example, position), or (example, position, width) as
            Captum's, which is added up; a list with one for each batch where data is a list.
        target: as for `Task`; or a list with one for each batch.
        replacements: ways to take positions out, one or several. Out of attention, where a mask
            and tokens to attend to are there, else the mean embedding, when None.
        bins: shares of positions for comprehensiveness and sufficiency.
        steps: of the deletion and insertion curves.
        seeds: how many random attributions the mean of "random" is over.
        confidence: of the intervals.
        seed: of random attributions, of ties, and of the intervals.
        show_progress: whether to draw a bar; when None, in a terminal where rich is installed.
        task: `special`, `removable`, `embedding`, `input_name`, `batch_size`, as for `Task`.
    """
    if not isinstance(attributions, Mapping):
        raise RegardError(
            f"attributions: a {type(attributions).__name__}, expected tensors by name, "
            'as {"mine": attribution}'
        )
    tasks = tasks_of(model, data, target, **task)
    found = {name: list(cut(given, tasks, name)) for name, given in attributions.items()}
    taken = set(found) & set(BASELINES)
    if taken:
        raise RegardError(f"attributions: {sorted(taken)} are names of baselines; take others")
    return measure(
        tasks,
        found,
        {},
        replacements=replacements,
        bins=bins,
        steps=steps,
        seeds=seeds,
        confidence=confidence,
        seed=seed,
        show_progress=show_progress,
    )


def measure(
    tasks: Sequence[Task],
    found: Found,
    unavailable: Mapping[str, str],
    *,
    replacements: Replacement | Sequence[Replacement] | None,
    bins: float | Sequence[float],
    steps: int,
    seeds: int,
    confidence: float,
    seed: int,
    show_progress: bool | None,
) -> Evaluation:
    """`evaluate` for tasks and attributions that are there."""
    if seeds < 1:
        raise RegardError(f"seeds={seeds}, expected at least 1")
    reasons = dict(unavailable)
    by_gradient, no_gradient = gradient_baselines(tasks)
    found = {**found, **by_gradient}
    reasons.update(no_gradient)
    ways = _ways(replacements, tasks)
    chance = _random(tasks, seeds, seed)
    total = len(ways) * sum(len(task) for task in tasks)
    measured = {}
    with progress("removing positions", total, show_progress) as advance:
        for way in ways:
            parts = [
                _followed(task, [*(given[i] for given in found.values()), *chance[i]], way,
                          bins, steps, seed + i, advance)
                for i, task in enumerate(tasks)
            ]  # fmt: skip
            for one in _joined([*found, RANDOM], name_of(way), parts, seeds):
                measured[one.replacement, one.method] = one
    nothing = sum(int((~task.removable.any(1)).sum()) for task in tasks)
    return Evaluation(
        measured=measured,
        methods=[*found, RANDOM],
        agreement=_agreement(tasks, found, chance),
        unavailable=reasons,
        examples=sum(len(task) for task in tasks),
        left_out=nothing,
        target=repr(tasks[0].target),
        confidence=confidence,
        seed=seed,
    )


def gradient_baselines(tasks: Sequence[Task]) -> tuple[Found, dict[str, str]]:
    """Attributions by gradients, and why others could not be had."""
    found: Found = {}
    reasons: dict[str, str] = {}
    for name, function in _GRADIENTS.items():
        try:
            found[name] = [function(task).double() for task in tasks]
        except RegardError as error:
            reasons[name] = str(error)
    return found, reasons


def _ways(given: Any, tasks: Sequence[Task]) -> list[Replacement]:
    if given is None:
        usual = {name_of(task.usual_replacement()): task.usual_replacement() for task in tasks}
        return [usual.get("mean embedding") or tasks[0].usual_replacement()]
    ways = list(given) if isinstance(given, list | tuple) else [given]
    for way in ways:
        if not callable(way):
            raise RegardError(f"replacements: {way!r}, expected some such as explain.Unattended()")
    names = [name_of(way) for way in ways]
    if not ways or len(set(names)) < len(names):
        raise RegardError(f"replacements: {names}, expected at least one, each with its own name")
    return ways


def _random(tasks: Sequence[Task], seeds: int, seed: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        [
            torch.rand(task.removable.shape, generator=generator, dtype=torch.float64).to(
                task.removable.device
            )
            for _ in range(seeds)
        ]
        for task in tasks
    ]


class _Followed(dict[str, Tensor]):
    """By measure (method, example); and "shares", "went", "came" (method, example, step)."""


def _followed(
    task: Task,
    attributions: Sequence[Attribution],
    way: Replacement,
    bins: float | Sequence[float],
    steps: int,
    seed: int,
    advance: Callable[[float], None],
) -> _Followed:
    """Every method's measures on one task, out of one run over all removals that they ask for."""
    ranked = ranks(torch.stack(list(attributions)), task.removable, seed)
    few, many = at_bins(task.removable, bins), at_steps(task.removable, steps)
    counts = torch.cat([few, many, few, many], 1)
    half = few.shape[1] + many.shape[1]
    scores = follow(
        task,
        ranked,
        counts,
        way,
        alone=[False] * half + [True] * half,
        advance=lambda share: advance(share * len(task)),
    )
    without, went, only, came = scores.split([few.shape[1], many.shape[1]] * 2, dim=2)
    shares = shares_of(many).expand_as(went)
    values = {
        "comprehensiveness": (task.original[:, None] - without).mean(2),
        "sufficiency": (task.original[:, None] - only).mean(2),
        "deletion": area(shares, went),
        "insertion": area(shares, came),
    }
    nothing = ~task.removable.any(1).cpu()
    found = _Followed(
        {name: value.masked_fill(nothing, torch.nan) for name, value in values.items()}
    )
    curves = {"shares": shares, "went": went, "came": came}
    found.update(
        {name: curve.masked_fill(nothing[:, None], torch.nan) for name, curve in curves.items()}
    )
    return found


def _joined(
    methods: Sequence[str], way: str, parts: Sequence[_Followed], seeds: int
) -> list[Measured]:
    """One for each method, over all tasks; the last `seeds` of them are the random ones."""
    whole = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}
    made = []
    for number, method in enumerate(methods):
        last = method == RANDOM
        which = slice(number, number + seeds if last else number + 1)
        one = {name: value[which].mean(0) for name, value in whole.items()}
        made.append(
            Measured(
                method,
                way,
                {name: one[name] for name in METRICS},
                one["shares"].nanmean(0),
                one["went"].nanmean(0),
                one["came"].nanmean(0),
            )
        )
    return made


def _agreement(
    tasks: Sequence[Task], found: Found, chance: Sequence[Sequence[Tensor]]
) -> Float[Tensor, "method method"]:
    examples = []
    for i, task in enumerate(tasks):
        stacked = torch.stack([*(given[i] for given in found.values()), chance[i][0]])
        for example, removable in enumerate(task.removable):
            if bool(removable.any()):
                examples.append(pairwise(stacked[:, example, removable]).cpu())
    size = len(found) + 1
    return mean_agreement(examples) if examples else torch.full((size, size), torch.nan).double()
